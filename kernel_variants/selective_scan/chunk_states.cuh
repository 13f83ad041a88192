// The first pass over a chunked sequence: what each chunk does to the states, without y and C.
//
// Tiles of x, delta and B arrive by cp.async, kStages in flight; the block turns each into (delta, delta x), once for all
// threads of a pair, and every thread then advances its states. No sum over a pair's threads, no output but at the end.
#pragma once

#include "chunks.cuh"

namespace scan::first_pass {

// As many rows as keep a tile of x near 8 KB.
constexpr int kTile = kPairsPerBlock <= 64 ? 32 : kPairsPerBlock <= 256 ? 2048 / kPairsPerBlock : 8;
constexpr int kStages = 3;
// Elements of a 16-byte copy.
constexpr int kWidth = 16 / static_cast<int>(sizeof(Element));
constexpr int kDelta = kTile * kPairsPerBlock;
constexpr int kB = 2 * kDelta;
constexpr int kStageElements = kB + kTile * kN;
constexpr int kStageFloats = kStageElements * static_cast<int>(sizeof(Element)) / 4;
constexpr int kUnroll = kTile < 8 ? kTile : 8;

static_assert(kPairsPerBlock % kWidth == 0 && kN % kWidth == 0, "rows are whole vectors");
static_assert(kTile * kPairsPerBlock % kBlockSize == 0, "a tile's steps fall to the threads in whole turns");
static_assert(kBlockSize % kPairsPerBlock == 0, "a thread prepares the steps of one channel");
static_assert(kPaddedN == kN, "a thread's states all exist");

// What one step does to a pair, whatever the state.
struct Drive {
  float delta;
  float input;  // delta x
};

struct Block {
  const Element* x;      // at the chunk's first step and the block's first channel
  const Element* delta;
  const Element* b;      // at the chunk's first step and the block's group
  long long channels;
  int length;
  int columns;           // channels of this block that exist

  template <int kColumns>
  static __device__ __forceinline__ void copy_rows(Element* to, const Element* from, long long stride, int rows,
                                                   int columns) {
    constexpr int kVectors = kColumns / kWidth;
#pragma unroll
    for (int pass = 0; pass * kBlockSize < kTile * kVectors; ++pass) {
      const int i = pass * kBlockSize + static_cast<int>(threadIdx.x);
      const int row = i / kVectors;
      const int column = i % kVectors * kWidth;
      if (kTile * kVectors % kBlockSize != 0 && row >= kTile) break;
      const bool valid = row < rows && column < columns;
      copy_or_clear<16>(to + row * kColumns + column, valid ? from + row * stride + column : from, valid);
    }
  }

  // Starts the copy of the tile at step t; what does not exist becomes zeros, which leave the states as they are.
  __device__ __forceinline__ void start(float* stage, long long t) const {
    if (t < length) {
      constexpr int kStride = kGroups * kN;
      Element* to = reinterpret_cast<Element*>(stage);
      const int rows = static_cast<int>(length - t);
      copy_rows<kPairsPerBlock>(to, x + t * channels, channels, rows, columns);
      copy_rows<kPairsPerBlock>(to + kDelta, delta + t * channels, channels, rows, columns);
      copy_rows<kN>(to + kB, b + t * kStride, kStride, rows, kN);
    }
    commit_copies();
  }
};

// rows: how many of the tile's lie within the chunk; those after leave the states as they are.
__device__ __forceinline__ void prepare(Drive* drives, const Element* stage, int rows, float bias) {
#pragma unroll
  for (int pass = 0; pass * kBlockSize < kTile * kPairsPerBlock; ++pass) {
    const int i = pass * kBlockSize + static_cast<int>(threadIdx.x);
    const float x = stage[i];
    const bool exists = !kRaw || i / kPairsPerBlock < rows;
    const float delta = exists ? step_size(stage[kDelta + i], bias) : 0.0f;
    drives[i] = Drive{delta, delta * x};
  }
}

__device__ __forceinline__ void advance(CarriedStates& states, float& sum, const Drive* drives, const Element* b_rows) {
#pragma unroll kUnroll
  for (int t = 0; t < kTile; ++t) {
    const Drive drive = drives[t * kPairsPerBlock];
    float b[kStatesPerThread];
    load_floats<kStatesPerThread, 4>(b, b_rows + t * kN);
    sum += drive.delta;
#pragma unroll
    for (int i = 0; i < kStatesPerThread; ++i) {
      states.h[i] = fmaf(decay(drive.delta, states.a[i]), states.h[i], drive.input * b[i]);
    }
  }
}

}  // namespace scan::first_pass

extern "C" __global__ void __launch_bounds__(config::kBlockSize)
selective_scan_chunk_states(const scan::Element* __restrict__ x, const scan::Element* __restrict__ delta,
                            const float* __restrict__ a, const scan::Element* __restrict__ b,
                            const float* __restrict__ bias_vector, float* __restrict__ chunk_states,
                            float* __restrict__ chunk_sums, int sequence, int channels) {
  using namespace scan;
  using first_pass::kTile;
  constexpr int kRing = first_pass::kStages;
  constexpr int kFloats = first_pass::kStageFloats;
  extern __shared__ __align__(16) float first_stages[];
  let_launch_after_start();
  const int blocks = (channels + kPairsPerBlock - 1) / kPairsPerBlock;
  const Chunk chunk(static_cast<int>(blockIdx.x) / blocks, kChunks - 1, sequence);
  const int first = static_cast<int>(blockIdx.x) % blocks * kPairsPerBlock;
  const Place place;
  const int channel = first + place.pair;
  const long long rows = static_cast<long long>(chunk.batch) * sequence + chunk.start;
  const first_pass::Block block{x + rows * channels + first,
                                delta + rows * channels + first,
                                b + (rows * kGroups + group_of(first, channels)) * kN,
                                channels,
                                chunk.length,
                                min(kPairsPerBlock, channels - first)};
  first_pass::Drive* const drives = reinterpret_cast<first_pass::Drive*>(first_stages + kRing * kFloats);

#pragma unroll
  for (int i = 0; i < kRing - 1; ++i) block.start(first_stages + i * kFloats, i * kTile);
  const float bias = bias_of(bias_vector, first + static_cast<int>(threadIdx.x) % kPairsPerBlock, channels);
  // From 0, as the chunk's own; no step of this pass uses skip, for which A stands in.
  CarriedStates states(a, a, a, 0, channel, channels, place);
#pragma unroll
  for (int i = 0; i < kStatesPerThread; ++i) states.h[i] = 0.0f;
  float sum = 0.0f;
  int slot = 0;
  for (long long t = 0; t < chunk.length; t += kTile) {
    const Element* stage = reinterpret_cast<const Element*>(first_stages + slot * kFloats);
    wait_copies<kRing - 2>();
    __syncthreads();  // this tile has arrived for all; the one before it, and its drives, are done with
    block.start(first_stages + (slot == 0 ? kRing - 1 : slot - 1) * kFloats, t + (kRing - 1) * kTile);
    first_pass::prepare(drives, stage, static_cast<int>(chunk.length - t), bias);
    __syncthreads();
    first_pass::advance(states, sum, drives + place.pair, stage + first_pass::kB + place.part * kStatesPerThread);
    slot = slot + 1 == kRing ? 0 : slot + 1;
  }
  if (channel >= channels) return;
  const long long at = chunk.place(chunk.number, channel, channels);
  if (place.first) chunk_sums[at] = sum;
#pragma unroll
  for (int i = 0; i < kStatesPerThread; ++i) chunk_states[at * kN + place.part * kStatesPerThread + i] = states.h[i];
}
