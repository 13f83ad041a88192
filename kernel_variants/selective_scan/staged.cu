// Selective scan, sequential in time, inputs staged through shared memory.
//
// As staged.cu, for problems with options. A block walks one batch's sequence for kPairsPerBlock neighbouring channels of
// one group. Tiles of tile_l time steps of x, delta, z, B and C arrive by cp.async, `stages` tiles in flight, so that no
// thread waits for memory; a thread adds the bias and takes softplus of what it copied itself, once for all threads of a
// pair. Each thread holds N / threads_per_pair states in registers and sums them over the pair's threads for a group of
// steps at once.
// Layout: x, delta, z, y [batch, length, channels]; b, c [batch, length, groups, N]; a [channels, N]; skip, bias
// [channels]; states [batch, channels, N].
#include "options.cuh"

namespace scan {

constexpr int kTileL = config::kTileL;
constexpr int kStages = config::kStages;
constexpr int kWidth = config::kVectorWidth;
constexpr int kBody = kGroup * config::kUnroll;
constexpr int kPairRows = kTileL * kPairsPerBlock;
constexpr int kStateRows = kTileL * kPaddedN;
// One stage, in elements: x, delta and, where it gates, z [tile, pairs]; b and c [tile, padded N]. Then, in fp32, what
// delta becomes [tile, pairs], if it becomes anything and elements are narrower.
constexpr int kDelta = kPairRows;
constexpr int kZ = 2 * kPairRows;
constexpr int kB = (config::kGate ? 3 : 2) * kPairRows;
constexpr int kC = kB + kStateRows;
constexpr bool kWidens = kRaw && sizeof(Element) < sizeof(float);
constexpr int kElementFloats = (kC + kStateRows) * static_cast<int>(sizeof(Element)) / 4;
constexpr int kStageFloats = kElementFloats + (kWidens ? kPairRows : 0);
constexpr int kCopyBytes = kWidth * static_cast<int>(sizeof(Element));

static_assert(kTileL % kBody == 0, "a tile holds whole loop bodies");
static_assert(kPairsPerBlock % kWidth == 0, "a vector copy stays within a row of the tile");
static_assert(kN % kWidth == 0, "rows of B and C start at multiples of the vector width");
static_assert(config::kD % kWidth == 0, "rows of x and delta start at multiples of the vector width");
static_assert(kCopyBytes >= 4, "cp.async copies 4 bytes at least");

// kTileL rows of kColumns elements into shared rows of kToStride. Rows from `rows` on and columns from `columns` on
// are filled with zeros (checked only if kGuarded). Where whole rows fall to the block in each pass, a thread's
// addresses differ by constants from pass to pass.
template <int kColumns, int kToStride, bool kGuarded>
__device__ __forceinline__ void copy_tile(Element* to, const Element* from, long long from_stride, int rows,
                                          int columns) {
  constexpr int kVectors = kColumns / kWidth;
  constexpr int kTotal = kTileL * kVectors;
  constexpr bool kWholeRows = kBlockSize % kVectors == 0;
  constexpr int kRowsPerPass = kWholeRows ? kBlockSize / kVectors : 0;
  const int thread = static_cast<int>(threadIdx.x);
  const Element* thread_from = from + thread / kVectors * from_stride + thread % kVectors * kWidth;
#pragma unroll
  for (int pass = 0; pass * kBlockSize < kTotal; ++pass) {
    const int i = pass * kBlockSize + thread;
    if (kTotal % kBlockSize != 0 && i >= kTotal) break;
    const int row = kWholeRows ? pass * kRowsPerPass + thread / kVectors : i / kVectors;
    const int column = (kWholeRows ? thread : i) % kVectors * kWidth;
    const bool valid = !kGuarded || (row < rows && column < columns);
    const Element* source =
        kWholeRows ? thread_from + pass * kRowsPerPass * from_stride : from + row * from_stride + column;
    copy_or_clear<kCopyBytes>(to + row * kToStride + column, valid ? source : from, valid);
  }
}

struct Block {
  const Element* x;      // at the block's batch and first channel
  const Element* delta;
  const Element* z;
  const Element* b;      // at the block's batch and group
  const Element* c;
  long long channels;
  int length;
  int columns;           // channels of this block that exist

  template <bool kGuarded>
  __device__ __forceinline__ void copy_stage(float* stage, int t) const {
    constexpr int kRowStride = kGroups * kN;
    Element* to = reinterpret_cast<Element*>(stage);
    const int rows = length - t;
    const long long row = t;
    copy_tile<kPairsPerBlock, kPairsPerBlock, kGuarded>(to, x + row * channels, channels, rows, columns);
    copy_tile<kPairsPerBlock, kPairsPerBlock, kGuarded>(to + kDelta, delta + row * channels, channels, rows, columns);
    if constexpr (config::kGate) {
      copy_tile<kPairsPerBlock, kPairsPerBlock, kGuarded>(to + kZ, z + row * channels, channels, rows, columns);
    }
    copy_tile<kN, kPaddedN, kGuarded>(to + kB, b + row * kRowStride, kRowStride, rows, kN);
    copy_tile<kN, kPaddedN, kGuarded>(to + kC, c + row * kRowStride, kRowStride, rows, kN);
  }

  // Starts the copy of the tile at step t; a tile beyond the end copies nothing but still counts as a group.
  __device__ __forceinline__ void start(float* stage, int t) const {
    if (t + kTileL <= length && columns == kPairsPerBlock) {
      copy_stage<false>(stage, t);
    } else if (t < length) {
      copy_stage<true>(stage, t);
    }
    commit_copies();
  }
};

// Turns delta into what the recurrence takes, each thread where copy_tile let it copy; zeros beyond the sequence stay.
struct StepSizes {
  static constexpr int kVectors = kPairsPerBlock / kWidth;
  static constexpr int kRowsPerPass = kBlockSize / kVectors;
  static_assert(kBlockSize % kVectors == 0, "a thread copies the same columns of every row");
  float bias[kWidth];

  __device__ StepSizes(const float* bias_vector, int first_channel, int channels) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) bias[i] = bias_of(bias_vector, first_channel + column() + i, channels);
  }

  static __device__ __forceinline__ int column() { return static_cast<int>(threadIdx.x) % kVectors * kWidth; }

  __device__ __forceinline__ void take(float* stage, int rows) const {
    if constexpr (kRaw) {
      const Element* from = reinterpret_cast<const Element*>(stage) + kDelta;
      float* to = kWidens ? stage + kElementFloats : reinterpret_cast<float*>(stage) + kDelta;
      for (int row = static_cast<int>(threadIdx.x) / kVectors; row < min(rows, kTileL); row += kRowsPerPass) {
        const int at = row * kPairsPerBlock + column();
#pragma unroll
        for (int i = 0; i < kWidth; ++i) to[at + i] = step_size(from[at + i], bias[i]);
      }
      if constexpr (kWidens) clear(to, rows);
    }
  }

  // No copy writes zeros where the widened rows lie.
  static __device__ void clear(float* to, int rows) {
    for (int row = rows + static_cast<int>(threadIdx.x) / kVectors; row < kTileL; row += kRowsPerPass) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) to[row * kPairsPerBlock + column() + i] = 0.0f;
    }
  }
};

__device__ __forceinline__ void load_group(Step (&steps)[kGroup], const float* stage, int t, const Place& place) {
  const Element* from = reinterpret_cast<const Element*>(stage);
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    const int pair = (t + i) * kPairsPerBlock + place.pair;
    const int state = (t + i) * kPaddedN + place.part * kStatesPerThread;
    steps[i].x = from[pair];
    if constexpr (kWidens) {
      steps[i].delta = stage[kElementFloats + pair];
    } else {
      steps[i].delta = from[kDelta + pair];
    }
    load_floats<kStatesPerThread, 4>(steps[i].b, from + kB + state);
    load_floats<kStatesPerThread, 4>(steps[i].c, from + kC + state);
  }
}

// kTileL steps from a stage. y points at the tile's first step and the thread's channel; with kGuarded only
// the first `rows` steps are written. Steps beyond `rows` are zeros and leave the states as they are.
template <bool kGuarded>
__device__ __forceinline__ void run_tile(const float* stage, Element* y, long long channels, int rows, bool writes,
                                         CarriedStates& states, Reducer& reducer, const Place& place) {
  constexpr int kUnroll = kGuarded ? 1 : config::kUnroll;
  Step next[kGroup];
  if constexpr (config::kRegisterPrefetch) load_group(next, stage, 0, place);
#pragma unroll kUnroll
  for (int t = 0; t < kTileL; t += kGroup) {
    Step steps[kGroup];
    if constexpr (config::kRegisterPrefetch) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) steps[i] = next[i];
      if (t + kGroup < kTileL) load_group(next, stage, t + kGroup, place);
    } else {
      load_group(steps, stage, t, place);
    }
    float partial[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) partial[i] = states.advance(steps[i]);
    const float total = reducer.total(partial, place);
    const int step = t + owned_step(place);
    if (writes && (!kGuarded || step < rows)) {
      if constexpr (config::kGate) {
        const Element* z = reinterpret_cast<const Element*>(stage) + kZ;
        y[step * channels] = gated(total, z[step * kPairsPerBlock + place.pair]);
      } else {
        y[step * channels] = total;
      }
    }
  }
}

// Columns of B and C between N and its padding are never copied: zero, once, in every stage.
__device__ __forceinline__ void clear_padding(float* stages) {
  if constexpr (kPaddedN > kN) {
    // At least 1, so that the branch which is not taken has no division by zero either.
    constexpr int kPad = kPaddedN > kN ? kPaddedN - kN : 1;
    for (int i = static_cast<int>(threadIdx.x); i < kStages * 2 * kTileL * kPad; i += kBlockSize) {
      const int row = i / kPad % (2 * kTileL);
      const int stage = i / (kPad * 2 * kTileL);
      reinterpret_cast<Element*>(stages + stage * kStageFloats)[kB + row * kPaddedN + kN + i % kPad] = 0.0f;
    }
  }
}

}  // namespace scan

extern "C" __global__ void __launch_bounds__(config::kBlockSize)
selective_scan_staged(const scan::Element* __restrict__ x, const scan::Element* __restrict__ delta,
                      const float* __restrict__ a, const scan::Element* __restrict__ b,
                      const scan::Element* __restrict__ c, const float* __restrict__ skip,
                      scan::Element* __restrict__ y, int length, int channels_given, const float* __restrict__ bias,
                      const scan::Element* __restrict__ z, const float* __restrict__ initial_states,
                      float* __restrict__ final_states) {
  using namespace scan;
  extern __shared__ __align__(16) float stages[];
  const int channels = config::kD > 0 ? static_cast<int>(config::kD) : channels_given;
  const int blocks_per_batch = (channels + kPairsPerBlock - 1) / kPairsPerBlock;
  const int batch = static_cast<int>(blockIdx.x) / blocks_per_batch;
  const int first = static_cast<int>(blockIdx.x) % blocks_per_batch * kPairsPerBlock;
  const Place place;
  const int channel = first + place.pair;
  const bool writes = channel < channels && owns_a_step(place);

  const long long rows = static_cast<long long>(batch) * length;
  const long long offset = rows * channels + first;
  const long long state = (rows * kGroups + group_of(first, channels)) * kN;
  const Block block{x + offset, delta + offset, z + offset, b + state, c + state, channels, length,
                    min(kPairsPerBlock, channels - first)};
  Element* out = y + offset + place.pair;
  CarriedStates states(a, skip, initial_states, batch, channel, channels, place);
  const StepSizes step_sizes(bias, first, channels);
  Reducer reducer{stages + kStages * kStageFloats + threadIdx.x / 32 * kReductionFloatsPerWarp};
  clear_padding(stages);

#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) block.start(stages + i * kStageFloats, i * kTileL);
  int slot = 0;
  for (int t = 0; t < length; t += kTileL) {
    if constexpr (kStages == 1) {
      __syncthreads();  // everyone has finished with the only stage
      block.start(stages, t);
    }
    wait_copies<kStages == 1 ? 0 : kStages - 2>();
    step_sizes.take(stages + slot * kStageFloats, length - t);
    __syncthreads();  // this tile has arrived for all; the slot before it is free
    if constexpr (kStages > 1) {
      const int free_slot = slot == 0 ? kStages - 1 : slot - 1;
      block.start(stages + free_slot * kStageFloats, t + (kStages - 1) * kTileL);
    }
    const float* stage = stages + slot * kStageFloats;
    if (t + kTileL <= length) {
      run_tile<false>(stage, out, channels, kTileL, writes, states, reducer, place);
    } else {
      run_tile<true>(stage, out, channels, length - t, writes, states, reducer, place);
    }
    out += static_cast<long long>(kTileL) * channels;
    slot = slot + 1 == kStages ? 0 : slot + 1;
  }
  states.write(final_states, batch, channel, channels, place);
}
