// Selective scan, sequential in time, inputs staged through shared memory.
//
// A block walks one batch's sequence for kPairsPerBlock neighbouring channels. Tiles of tile_l time steps of x, delta, B
// and C arrive by cp.async, `stages` tiles in flight, so that no thread waits for memory; each thread holds
// N / threads_per_pair states in registers and sums them over the pair's threads for a group of steps at once.
// Layout: x, delta, y [batch, length, channels]; b, c [batch, length, N]; a [channels, N]; skip [channels].
#include "scan.cuh"

namespace scan {

constexpr int kTileL = config::kTileL;
constexpr int kStages = config::kStages;
constexpr int kWidth = config::kVectorWidth;
constexpr int kBody = kGroup * config::kUnroll;
constexpr int kPairRows = kTileL * kPairsPerBlock;
constexpr int kStateRows = kTileL * kPaddedN;
// One stage: x [tile, pairs], delta [tile, pairs], b [tile, padded N], c [tile, padded N].
constexpr int kStageFloats = 2 * kPairRows + 2 * kStateRows;

static_assert(kTileL % kBody == 0, "a tile holds whole loop bodies");
static_assert(kPairsPerBlock % kWidth == 0, "a vector copy stays within a row of the tile");
static_assert(kN % kWidth == 0, "rows of B and C start at multiples of the vector width");
static_assert(config::kD % kWidth == 0, "rows of x and delta start at multiples of the vector width");

template <int kBytes>
__device__ __forceinline__ void copy_async(float* to, const float* from, int valid_bytes) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(valid_bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(from), "n"(kBytes),
                 "r"(valid_bytes)
                 : "memory");
  }
}

// kTileL rows of kColumns floats into shared rows of kToStride. Rows from `rows` on and columns from `columns` on
// are filled with zeros (checked only if kGuarded). Where whole rows fall to the block in each pass, a thread's
// addresses differ by constants from pass to pass.
template <int kColumns, int kToStride, bool kGuarded>
__device__ __forceinline__ void copy_tile(float* to, const float* from, long long from_stride, int rows, int columns) {
  constexpr int kVectors = kColumns / kWidth;
  constexpr int kTotal = kTileL * kVectors;
  constexpr bool kWholeRows = kBlockSize % kVectors == 0;
  constexpr int kRowsPerPass = kWholeRows ? kBlockSize / kVectors : 0;
  const int thread = static_cast<int>(threadIdx.x);
  const float* thread_from = from + thread / kVectors * from_stride + thread % kVectors * kWidth;
#pragma unroll
  for (int pass = 0; pass * kBlockSize < kTotal; ++pass) {
    const int i = pass * kBlockSize + thread;
    if (kTotal % kBlockSize != 0 && i >= kTotal) break;
    const int row = kWholeRows ? pass * kRowsPerPass + thread / kVectors : i / kVectors;
    const int column = (kWholeRows ? thread : i) % kVectors * kWidth;
    const bool valid = !kGuarded || (row < rows && column < columns);
    const float* source =
        kWholeRows ? thread_from + pass * kRowsPerPass * from_stride : from + row * from_stride + column;
    copy_async<4 * kWidth>(to + row * kToStride + column, valid ? source : from, valid ? 4 * kWidth : 0);
  }
}

struct Block {
  const float* x;      // at the block's batch and first channel
  const float* delta;
  const float* b;      // at the block's batch
  const float* c;
  long long channels;
  int length;
  int columns;         // channels of this block that exist

  template <bool kGuarded>
  __device__ __forceinline__ void copy_stage(float* stage, int t) const {
    const int rows = length - t;
    const long long row = t;
    copy_tile<kPairsPerBlock, kPairsPerBlock, kGuarded>(stage, x + row * channels, channels, rows, columns);
    copy_tile<kPairsPerBlock, kPairsPerBlock, kGuarded>(stage + kPairRows, delta + row * channels, channels, rows,
                                                        columns);
    copy_tile<kN, kPaddedN, kGuarded>(stage + 2 * kPairRows, b + row * kN, kN, rows, kN);
    copy_tile<kN, kPaddedN, kGuarded>(stage + 2 * kPairRows + kStateRows, c + row * kN, kN, rows, kN);
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

__device__ __forceinline__ void load_group(Step (&steps)[kGroup], const float* stage, int t, const Place& place) {
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    const int pair = (t + i) * kPairsPerBlock + place.pair;
    const int state = (t + i) * kPaddedN + place.part * kStatesPerThread;
    steps[i].x = stage[pair];
    steps[i].delta = stage[kPairRows + pair];
    load_floats<kStatesPerThread, 4>(steps[i].b, stage + 2 * kPairRows + state);
    load_floats<kStatesPerThread, 4>(steps[i].c, stage + 2 * kPairRows + kStateRows + state);
  }
}

// kTileL steps from a stage. y points at the tile's first step and the thread's channel; with kGuarded only
// the first `rows` steps are written. Steps beyond `rows` are zeros and leave the states as they are.
template <bool kGuarded>
__device__ __forceinline__ void run_tile(const float* stage, float* y, long long channels, int rows, bool writes,
                                         States& states, Reducer& reducer, const Place& place) {
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
    if (writes && (!kGuarded || step < rows)) y[step * channels] = total;
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
      stages[stage * kStageFloats + 2 * kPairRows + row * kPaddedN + kN + i % kPad] = 0.0f;
    }
  }
}

}  // namespace scan

extern "C" __global__ void __launch_bounds__(config::kBlockSize)
selective_scan_staged(const float* __restrict__ x, const float* __restrict__ delta, const float* __restrict__ a,
                      const float* __restrict__ b, const float* __restrict__ c, const float* __restrict__ skip,
                      float* __restrict__ y, int length, int channels_given) {
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
  const Block block{x + offset, delta + offset, b + rows * kN, c + rows * kN, channels, length,
                    min(kPairsPerBlock, channels - first)};
  float* out = y + offset + place.pair;
  States states(a, skip, channel, channels, place);
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
}
