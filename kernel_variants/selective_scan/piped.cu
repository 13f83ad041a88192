// Selective scan, sequential in time, computed by one half of a block and served by the other.
//
// Helper warps copy tiles of time into a ring of stages, sum the compute warps' parts of y and store it; compute warps
// touch shared memory alone and never wait for it: inputs are loaded, and exponentials taken, `exp_ahead` steps before
// the recurrence needs them, also across the end of a tile. Two named barriers a tile order everything: `done`, a tile
// was computed (its stage and its sums may be taken), and `ready`, a tile has landed and the room for its sums is free.
// Layout: x, delta, y [batch, length, channels]; b, c [batch, length, N]; a [channels, N]; skip [channels].
// A stage is rows of time: x [pairs], delta [pairs], b [N], c [N].
#include "scan.cuh"

namespace scan {

// A pair's parts lie in kThreadsPerPair warps whose lanes are 32 channels, and helper warps sum them; otherwise they are
// lanes of one warp, which sums them itself.
constexpr bool kHelpersSum = config::kReduction == config::Reduction::shared;
constexpr int kTileL = config::kTileL;
constexpr int kStages = config::kStages;
constexpr int kAhead = config::kExpAhead;
constexpr int kHelpers = config::kHelpers;
constexpr int kWarps = kBlockSize / 32;
constexpr int kThreads = kBlockSize + 32 * kHelpers;
// Steps of x and delta that one load brings, and of y that one store takes.
constexpr int kSteps = 4;
// How many steps before its exponentials x and delta are loaded, in whole kSteps, and before its use B and C.
constexpr int kInputAhead = kAhead < kSteps ? kSteps : 2 * kSteps;
constexpr int kRowAhead = config::kRowAhead;
constexpr int kRing = 8;
constexpr int kBody = config::kUnroll * kSteps;
constexpr int kRow = 2 * kPairsPerBlock + 2 * kN;
constexpr int kDelta = kPairsPerBlock;
constexpr int kB = 2 * kPairsPerBlock;
constexpr int kC = kB + kN;
constexpr int kStageFloats = kTileL * kRow;
// Sums of one tile: [warp][tile / kSteps][lane][kSteps].
constexpr int kSumFloats = kHelpersSum ? kWarps * kTileL * 32 : 0;
constexpr int kHelperRows = kTileL / kHelpers;

static_assert(kTileL % kBody == 0 && kBody % kRing == 0, "a tile holds whole bodies, a body whole turns of the rings");
static_assert(kHelperRows % kSteps == 0, "a helper warp sums whole groups of steps");
static_assert(kPairsPerBlock % 32 == 0, "a helper's lanes are channels");
static_assert(kN % 4 == 0, "rows of B and C are whole 16-byte vectors");
static_assert(kN % kThreadsPerPair == 0, "parts are whole states");
static_assert(kHelpersSum ? kWarps % kThreadsPerPair == 0 : kPairsPerWarp % 4 == 0,
              "the parts of a pair are warps of the block, or lanes of a warp, at least 4 channels side by side");
static_assert(kHelpersSum || kBody % kGroup == 0, "a body holds whole groups of the reduction");
static_assert(kStages >= 2, "a tile lands while another is computed");

// ---- barriers

enum Barrier : int { kReady = 1, kDone = 3 };  // two of each, for even and odd tiles

__device__ __forceinline__ void arrive(int barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}
__device__ __forceinline__ void meet(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}

// ---- compute warps

__device__ __forceinline__ Place place_of_thread() {
  Place place;
  if constexpr (kHelpersSum) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    place.part = warp % kThreadsPerPair;
    place.pair = warp / kThreadsPerPair * 32 + static_cast<int>(threadIdx.x) % 32;
    place.first = place.part == 0;
  }
  return place;
}

// Word `lane` of each of 4 rows, kRow floats apart. `from` is lane l's: row l / 8, 16 bytes that hold the words of
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
  const int first = place.pair - (kHelpersSum ? lane : lane % kPairsPerWarp);
  const int word = 4 * (lane % 8);
  return lane / 8 * kRow + first + (kHelpersSum ? word : word % kPairsPerWarp);
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
    load_floats<kStatesPerThread, 4>(b[step % kRing], from + kB);
    load_floats<kStatesPerThread, 4>(c[step % kRing], from + kC);
  }

  __device__ __forceinline__ void take_exponentials(int step, const States& states) {
    const int at = step % kRing;
    input[at] = delta[at] * x[at];
    skipped[at] = x[at] * states.skip;
#pragma unroll
    for (int i = 0; i < kStatesPerThread; ++i) decays[at][i] = decay(delta[at], states.a[i]);
  }

  __device__ __forceinline__ float advance(int step, States& states) const {
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

// Where the rows of a body lie, and those of the body after it, perhaps in the next stage.
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

  __device__ __forceinline__ void fill(Pipeline& pipeline, const States& states) const {
    const Rows inputs{columns, columns};
    const Rows rows{states_of, states_of};
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
  __device__ __forceinline__ void run_body(Pipeline& pipeline, States& states, const Rows& inputs, const Rows& rows,
                                           float* to, float* y, int left, int next_ready, Reducer& reducer,
                                           const Place& place) const {
    float partial[kSteps];
    float grouped[kGroup];
#pragma unroll
    for (int step = 0; step < kBody; ++step) {
      if (kLast && step == kBody - kInputAhead) meet(next_ready);
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
          if (writes && owned < left) y[owned * channels] = total;
        }
      }
    }
  }

  __device__ __forceinline__ void run(States& states, float* y, int length, int tiles, const Place& place) const {
    Pipeline pipeline;
    Reducer reducer{nullptr};
    int left = length;
    meet(kReady);
    fill(pipeline, states);
    int slot = 0;
    for (int tile = 0; tile < tiles; ++tile) {
      const int next_slot = slot + 1 == kStages ? 0 : slot + 1;
      const float* inputs = columns + slot * kStageFloats;
      const float* rows = states_of + slot * kStageFloats;
      float* to = sums + tile % 2 * kSumFloats;
#pragma unroll 1
      for (int body = 0; body < kTileL / kBody - 1; ++body) {
        run_body<false>(pipeline, states, {inputs, inputs + kBody * kRow}, {rows, rows + kBody * kRow}, to, y, left, 0,
                        reducer, place);
        inputs += kBody * kRow;
        rows += kBody * kRow;
        to += kBody * 32;
        y += kBody * channels;
        left -= kBody;
      }
      run_body<true>(pipeline, states, {inputs, columns + next_slot * kStageFloats},
                     {rows, states_of + next_slot * kStageFloats}, to, y, left, kReady + (tile + 1) % 2, reducer,
                     place);
      y += kBody * channels;
      left -= kBody;
      arrive(kDone + tile % 2);
      slot = next_slot;
    }
  }
};

// ---- helper warps

__device__ __forceinline__ void copy_16(float* to, const float* from) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}

// One helper warp, for its kHelperRows rows of every tile. Rows beyond the sequence and channels beyond the last are
// not copied: what is computed of them is not stored.
struct Helper {
  const float* x;       // at the batch, the block's first channel, and this warp's first row
  const float* delta;
  const float* b;
  const float* c;
  float* y;
  float* stages;        // at this warp's first row
  const float* sums;    // at this warp's first group of steps
  long long channels;
  int columns;          // channels of this block that exist
  int lane;

  template <int kColumns>
  __device__ __forceinline__ void copy_rows(float* to, const float* from, long long stride, int rows, int width) const {
    constexpr int kVectors = kColumns / 4;
#pragma unroll
    for (int pass = 0; pass * 32 < kHelperRows * kVectors; ++pass) {
      const int i = pass * 32 + lane;
      const int row = i / kVectors;
      const int column = i % kVectors * 4;
      if (row < min(rows, kHelperRows) && column < width) {
        copy_16(to + row * kRow + column, from + row * stride + column);
      }
    }
  }

  // rows: how many of this warp's rows of the tile lie within the sequence.
  __device__ __forceinline__ void copy(int slot, long long t, int rows) const {
    float* to = stages + slot * kStageFloats;
    copy_rows<kPairsPerBlock>(to, x + t * channels, channels, rows, columns);
    copy_rows<kPairsPerBlock>(to + kDelta, delta + t * channels, channels, rows, columns);
    copy_rows<kN>(to + kB, b + t * kN, kN, rows, kN);
    copy_rows<kN>(to + kC, c + t * kN, kN, rows, kN);
  }

  __device__ __forceinline__ void store(const float* stage, const float* from, float* to,
                                        const float (&skip)[kPairsPerBlock / 32], int rows) const {
#pragma unroll
    for (int column = 0; column < kPairsPerBlock; column += 32) {
#pragma unroll
      for (int step = 0; step < kHelperRows; step += kSteps) {
        float total[kSteps];
#pragma unroll
        for (int i = 0; i < kSteps; ++i) total[i] = stage[(step + i) * kRow + column + lane] * skip[column / 32];
#pragma unroll
        for (int part = 0; part < kThreadsPerPair; ++part) {
          const int warp = column / 32 * kThreadsPerPair + part;
          const float4 v = *reinterpret_cast<const float4*>(from + (warp * kTileL * 32 + (step * 32 + lane * kSteps)));
          total[0] += v.x, total[1] += v.y, total[2] += v.z, total[3] += v.w;
        }
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          if (step + i < rows && column + lane < columns) to[(step + i) * channels + column + lane] = total[i];
        }
      }
    }
  }

  __device__ __forceinline__ void run(int length, int tiles, const float* skip_vector) const {
    float skip[kPairsPerBlock / 32];
#pragma unroll
    for (int i = 0; i < kPairsPerBlock / 32; ++i) {
      skip[i] = 32 * i + lane < columns ? skip_vector[32 * i + lane] : 0.0f;
    }
#pragma unroll
    for (int tile = 0; tile < kStages; ++tile) {
      copy(tile, tile * kTileL, length - tile * kTileL);
      commit_copies();
    }
    wait_copies<kStages - 1>();
    arrive(kReady);
    wait_copies<kStages - 2>();
    arrive(kReady + 1);
    int slot = 0;
    for (int tile = 0; tile < tiles; ++tile) {
      meet(kDone + tile % 2);
      const long long t = static_cast<long long>(tile) * kTileL;
      const int rows = length - tile * kTileL;
      if constexpr (kHelpersSum) {
        store(stages + slot * kStageFloats, sums + tile % 2 * kSumFloats, y + t * channels, skip, rows);
        __syncwarp();  // every lane has read x before its rows are filled again
      }
      copy(slot, t + kStages * kTileL, rows - kStages * kTileL);
      commit_copies();
      wait_copies<kStages - 2>();
      if (tile + 2 <= tiles) arrive(kReady + tile % 2);
      slot = slot + 1 == kStages ? 0 : slot + 1;
    }
  }
};

}  // namespace scan

extern "C" __global__ void __launch_bounds__(scan::kThreads, config::kMinBlocks)
selective_scan_piped(const float* __restrict__ x, const float* __restrict__ delta, const float* __restrict__ a,
                     const float* __restrict__ b, const float* __restrict__ c, const float* __restrict__ skip,
                     float* __restrict__ y, int length, int channels) {
  using namespace scan;
  extern __shared__ __align__(16) float stages[];
  const int blocks_per_batch = (channels + kPairsPerBlock - 1) / kPairsPerBlock;
  const int batch = static_cast<int>(blockIdx.x) / blocks_per_batch;
  const int first = static_cast<int>(blockIdx.x) % blocks_per_batch * kPairsPerBlock;
  const int tiles = (length + kTileL - 1) / kTileL;
  const int thread = static_cast<int>(threadIdx.x);
  float* const sums = stages + kStages * kStageFloats;

  if (thread < kBlockSize) {
    const Place place = place_of_thread();
    States states(a, skip, first + place.pair, channels, place);
    const long long offset = static_cast<long long>(batch) * length * channels + first + place.pair;
    const Compute compute{stages + column_offset(place),
                          stages + place.part * kStatesPerThread,
                          sums + thread / 32 * kTileL * 32 + thread % 32 * kSteps,
                          channels,
                          first + place.pair < channels && owns_a_step(place)};
    compute.run(states, y + offset, length, tiles, place);
  } else {
    const int row = (thread - kBlockSize) / 32 * kHelperRows;
    const long long rows = static_cast<long long>(batch) * length + row;
    const long long offset = rows * channels + first;
    const Helper helper{x + offset, delta + offset, b + rows * kN, c + rows * kN, y + offset, stages + row * kRow,
                        sums + row * 32, channels, min(kPairsPerBlock, channels - first), thread % 32};
    helper.run(length - row, tiles, skip + first);
  }
}
