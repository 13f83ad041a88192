// Selective scan, sequential in time, computed by one half of a block and served by the other.
//
// Helper warps copy tiles of time into a ring of stages (piped_copies.cuh), widen elements, add the bias and take
// softplus, sum the compute warps' parts of y, gate it and store it; compute warps touch shared memory alone and never
// wait for it: inputs are loaded, and exponentials taken, `exp_ahead` steps before the recurrence needs them, also across
// the end of a tile. The halves meet twice a tile, which orders everything: when the next tile has been prepared and the
// room for its sums is free, and when this tile was computed, so that its stage and its sums may be taken.
// Layout: x, delta, z, y [batch, length, channels]; b, c [batch, length, groups, N]; a [channels, N]; skip, bias
// [channels]; states [batch, channels, N]. A block's channels are of one group.
#include "chunks.cuh"
#include "piped_helper.cuh"

namespace scan {

__device__ __forceinline__ Place place_of_thread() {
  Place place;
  if constexpr (kHelpersSum) {
    const int group = static_cast<int>(threadIdx.x) / kWarpColumns;
    place.part = group % kThreadsPerPair;
    place.pair = group / kThreadsPerPair * kWarpColumns + static_cast<int>(threadIdx.x) % kWarpColumns;
    place.first = place.part == 0;
  }
  return place;
}

// Word `lane` of each of 4 rows. `from` is lane l's: row l / 8, 16 bytes that hold the words of
// lanes 4 (l % 8) to 4 (l % 8) + 3.
__device__ __forceinline__ void load_column(float (&to)[kSteps], const float* from) {
#ifdef KTUNE_CPU
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = 0; i < kSteps; ++i) {
    const unsigned long long at = reinterpret_cast<unsigned long long>(from);
    const unsigned long long row = __shfl_sync(kFullMask, at, 8 * i + lane / 4);
    to[i] = reinterpret_cast<const float*>(row)[lane % 4];
  }
#else
  unsigned bits[kSteps];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(bits[0]), "=r"(bits[1]), "=r"(bits[2]), "=r"(bits[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(from))));
#pragma unroll
  for (int i = 0; i < kSteps; ++i) to[i] = __uint_as_float(bits[i]);
#endif
}

// Offset in a stage, in floats, of what the lane passes to load_column for the tile's first steps of x.
__device__ __forceinline__ int column_offset(const Place& place) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return lane / 8 * kPairsPerBlock + place.pair - lane % kWarpColumns + 4 * (lane % 8) % kWarpColumns;
}

// What is under way between loading and use; the index of a step is its number modulo kRing.
struct Pipeline {
  float delta[kRing];
  float x[kRing];
  float input[kRing];                     // delta x
  float skipped[kRing];                   // x skip, where no helper adds it
  float decays[kRing][kStatesPerThread];
  float b[kRing][kStatesPerThread];
  float c[kRing][kStatesPerThread];

  // from: the steps' row, at this lane's column_offset.
  __device__ __forceinline__ void load_inputs(int step, const float* from) {
    float column[kSteps];
    load_column(column, from + kDelta);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) delta[(step + i) % kRing] = column[i];
    load_column(column, from);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) x[(step + i) % kRing] = column[i];
  }

  // from: the step's row, at this thread's states.
  __device__ __forceinline__ void load_row(int step, const float* from) {
    load_floats<kStatesPerThread, 4>(b[step % kRing], from);
    load_floats<kStatesPerThread, 4>(c[step % kRing], from + (kC - kB));
  }

  __device__ __forceinline__ void take_exponentials(int step, const CarriedStates& states) {
    const int at = step % kRing;
    input[at] = delta[at] * x[at];
    skipped[at] = states.skipped(x[at]);
#pragma unroll
    for (int i = 0; i < kStatesPerThread; ++i) decays[at][i] = decay(delta[at], states.a[i]);
  }

  __device__ __forceinline__ float advance(int step, CarriedStates& states) const {
    const int at = step % kRing;
    float partial = skipped[at];
#pragma unroll
    for (int i = 0; i < kStatesPerThread; ++i) {
      states.h[i] = fmaf(decays[at][i], states.h[i], input[at] * b[at][i]);
      partial = kHelpersSum && i == 0 ? states.h[i] * c[at][i] : fmaf(states.h[i], c[at][i], partial);
    }
    return partial;
  }
};

// Where the rows of a body lie, kRow numbers apart, and those of the body after it, perhaps in the next stage.
template <int kRow>
struct Rows {
  const float* now;
  const float* next;

  __device__ __forceinline__ const float* at(int step) const {
    return step < kBody ? now + step * kRow : next + (step - kBody) * kRow;
  }
};

struct Compute {
  const float* columns;  // in the first stage: this lane's column_offset, and this thread's states
  const float* states_of;
  float* sums;           // this thread's
  long long channels;
  bool writes;
  int gate;              // from this lane's column_offset to z of its channel

  __device__ __forceinline__ void fill(Pipeline& pipeline, const CarriedStates& states) const {
    const Rows<kPairsPerBlock> inputs{columns, columns};
    const Rows<kN> rows{states_of, states_of};
#pragma unroll
    for (int step = 0; step < kInputAhead; step += kSteps) pipeline.load_inputs(step, inputs.at(step));
#pragma unroll
    for (int step = 0; step < kRowAhead; ++step) pipeline.load_row(step, rows.at(step));
#pragma unroll
    for (int step = 0; step < kAhead; ++step) pipeline.take_exponentials(step, states);
  }

  // kBody steps; with kLast, the next tile's stage is waited for before it is first read. `y` and `left` are the body's
  // first step of this thread's channel and the steps from there to the sequence's end.
  template <bool kLast>
  __device__ __forceinline__ void run_body(Pipeline& pipeline, CarriedStates& states,
                                           const Rows<kPairsPerBlock>& inputs, const Rows<kN>& rows, float* to,
                                           Element* y, int left, Reducer& reducer, const Place& place) const {
    float partial[kSteps];
    float grouped[kGroup];
#pragma unroll
    for (int step = 0; step < kBody; ++step) {
      if (kLast && step == kBody - kInputAhead) meet();
      if (step % kSteps == 0) pipeline.load_inputs(step + kInputAhead, inputs.at(step + kInputAhead));
      pipeline.load_row(step + kRowAhead, rows.at(step + kRowAhead));
      pipeline.take_exponentials(step + kAhead, states);
      if constexpr (kHelpersSum) {
        partial[step % kSteps] = pipeline.advance(step, states);
        if (step % kSteps == kSteps - 1) {
          *reinterpret_cast<float4*>(to + step / kSteps * 32 * kSteps) =
              make_float4(partial[0], partial[1], partial[2], partial[3]);
        }
      } else {
        grouped[step % kGroup] = pipeline.advance(step, states);
        if (step % kGroup == kGroup - 1) {
          const float total = reducer.total(grouped, place);
          const int owned = step / kGroup * kGroup + owned_step(place);
          if (writes && owned < left) {
            if constexpr (config::kGate) {
              y[owned * channels] = gated(total, inputs.now[owned * kPairsPerBlock + gate]);
            } else {
              y[owned * channels] = total;
            }
          }
        }
      }
    }
  }

  __device__ __forceinline__ void run(CarriedStates& states, Element* y, int length, int tiles,
                                      const Place& place) const {
    Pipeline pipeline;
    Reducer reducer{nullptr};
    int left = length;
    meet();  // the first tile is ready
    fill(pipeline, states);
    int slot = 0;
    for (int tile = 0; tile < tiles; ++tile) {
      const int next_slot = slot + 1 == kStages ? 0 : slot + 1;
      const float* inputs = columns + slot * kStageFloats;
      const float* rows = states_of + slot * kStageFloats;
      float* to = sums + tile % 2 * kSumFloats;
#pragma unroll 1
      for (int body = 0; body < kTileL / kBody - 1; ++body) {
        run_body<false>(pipeline, states, {inputs, inputs + kBody * kPairsPerBlock}, {rows, rows + kBody * kN}, to, y,
                        left, reducer, place);
        inputs += kBody * kPairsPerBlock;
        rows += kBody * kN;
        to += kBody * 32;
        y += kBody * channels;
        left -= kBody;
      }
      run_body<true>(pipeline, states, {inputs, columns + next_slot * kStageFloats},
                     {rows, states_of + next_slot * kStageFloats}, to, y, left, reducer, place);
      y += kBody * channels;
      left -= kBody;
      meet();  // the tile was computed
      slot = next_slot;
    }
  }
};

}  // namespace scan

extern "C" __global__ void __launch_bounds__(scan::kThreads, config::kMinBlocks)
selective_scan_piped(const __grid_constant__ scan::Input x, const __grid_constant__ scan::Input delta,
                     const float* __restrict__ a, const __grid_constant__ scan::Input b,
                     const __grid_constant__ scan::Input c, const float* __restrict__ skip,
                     scan::Element* __restrict__ y, int sequence, int channels_given, const float* __restrict__ bias,
                     const __grid_constant__ scan::Input z, const float* __restrict__ initial_states,
                     float* __restrict__ final_states, const float* chunk_states, const float* chunk_sums) {
  using namespace scan;
  extern __shared__ __align__(128) float stages[];
  const int channels = config::kD > 0 ? static_cast<int>(config::kD) : channels_given;
  const int blocks = (channels + kPairsPerBlock - 1) / kPairsPerBlock;
  const Chunk chunk(static_cast<int>(blockIdx.x) / blocks, kChunks, sequence);
  if (kChunks > 1 && chunk.length == 0) return;
  const int first = static_cast<int>(blockIdx.x) % blocks * kPairsPerBlock;
  const int tiles = (chunk.length + kTileL - 1) / kTileL;
  const int thread = static_cast<int>(threadIdx.x);
  const long long start = static_cast<long long>(chunk.batch) * sequence + chunk.start;
  float* const sums = stages + kStages * kStageFloats;

  if (thread < kBlockSize) {
    const Place place = place_of_thread();
    const int channel = first + place.pair;
    CarriedStates states(a, skip, initial_states, chunk.batch, channel, channels, place);
    pass_chunks(states, chunk, chunk_states, chunk_sums, channel, channels, place);
    const Compute compute{stages + column_offset(place),
                          stages + kB + place.part * kStatesPerThread,
                          sums + thread / 32 * kTileL * 32 + thread % 32 * kSteps,
                          channels,
                          channel < channels && owns_a_step(place),
                          kZ + place.pair - column_offset(place)};
    compute.run(states, y + start * channels + channel, chunk.length, tiles, place);
    if (chunk.ends(sequence)) states.write(final_states, chunk.batch, channel, channels, place);
  } else {
    // a warp's lanes have the same, which the compiler sees when it comes from one of them
    const int row = __shfl_sync(kFullMask, (thread - kBlockSize) / 32, 0) * kHelperRows;
    const int columns = min(kPairsPerBlock, channels - first);
    const Origin origin{chunk.batch, chunk.start + row, first,    group_of(first, channels),
                        row,         sequence,          channels, columns};
    Element* const landing = reinterpret_cast<Element*>(stages + (kWidens ? kTile : 0));
    char* const barriers = reinterpret_cast<char*>(sums + 2 * kSumFloats);
    Helper helper{{x, delta, z, b, c, landing, barriers, origin}, y + (start + row) * channels + first, stages,
                  sums + row * 32, row, channels, columns, thread % 32};
    helper.run(chunk.length - row, tiles, skip + first, bias + first);
  }
}
