// Where a thread of blockscan.cu works, how its block's shared memory is laid out, and how tiles of time come and go.
#pragma once

#include "options.cuh"

namespace scan {

constexpr int kChannels = config::kChannels;
constexpr int kLaneChannels = config::kLaneChannels;
constexpr int kTimeLanes = 32 / kLaneChannels;
constexpr int kTimeWarps = config::kTimeWarps;
constexpr int kThreads = 32 * kTimeWarps * kChannels / kLaneChannels;
constexpr int kItems = config::kItems;
constexpr int kRuns = kTimeLanes * kTimeWarps;  // threads along time, each with its run of kItems steps
constexpr int kTile = kRuns * kItems;
constexpr int kStages = config::kStages;
constexpr int kWidth = config::kVectorWidth;
constexpr int kStates = config::kStatesAtOnce;
constexpr int kRowN = (kN + kStates - 1) / kStates * kStates;
constexpr int kTurns = kRowN / kStates;

// Floats from one run of a stage to the next: runs that a warp reads at once start `shift` banks apart.
constexpr int run_stride(int row, int shift) { return kItems * row + (32 + shift - kItems * row % 32) % 32; }
constexpr int kChannelRun = run_stride(kChannels, kLaneChannels < 4 ? 4 : kLaneChannels);
constexpr int kStateRun = run_stride(kRowN, 4);
// One stage: x, which y replaces, and delta [runs, items, channels], b and c [runs, items, padded N].
constexpr int kDelta = kRuns * kChannelRun;
constexpr int kB = 2 * kDelta;
constexpr int kC = kB + kRuns * kStateRun;
constexpr int kStageFloats = kC + kRuns * kStateRun;
// After the stages: A [turns, channels, kStates]; the states at the tile's start, for even and odd tiles, likewise; the
// warps' pairs [2, warps along time, channels, 2, kStates] for even and odd turns.
constexpr int kMatrixFloats = kTurns * kChannels * kStates;
constexpr int kPairFloats = kTimeWarps > 1 ? kTimeWarps * kChannels * 2 * kStates : 0;

static_assert(kChannels % kLaneChannels == 0, "the channels of a block are whole warps");
static_assert(kThreads <= 1024, "a block has at most 1024 threads");
static_assert(sizeof(Element) == sizeof(float), "a stage holds floats");
static_assert(kStages >= 2, "a tile lands while another is computed");
static_assert(kN % kWidth == 0 && kChannels % kWidth == 0, "rows are whole vectors");
static_assert(kChannels % 4 == 0, "runs of x start at whole vectors");

struct Lane {
  int channel;  // of the block
  int lane;     // along time, in the warp
  int warp;     // along time, in the block

  __device__ Lane() {
    const int thread = static_cast<int>(threadIdx.x);
    const int side = thread / 32 % (kChannels / kLaneChannels);
    channel = side * kLaneChannels + thread % kLaneChannels;
    lane = thread % 32 / kLaneChannels;
    warp = thread / 32 / (kChannels / kLaneChannels);
  }
};

// The thread's vectors of a tile of kColumns columns; in its part of a stage rows are kRow floats, runs kRun.
template <int kColumns, int kRow, int kRun>
struct Vectors {
  static constexpr int kVectors = kColumns / kWidth;
  static constexpr int kTotal = kTile * kVectors;
  // Whole runs fall to the block in each pass: a thread's addresses then differ by constants from pass to pass.
  static constexpr bool kWholeRuns = kThreads % (kVectors * kItems) == 0;
  static constexpr int kRows = kThreads / kVectors;

  // Calls visit(row, offset, place, column): `offset` is that of the vector in a tensor whose rows are `stride` floats,
  // `place` that in the part of the stage.
  template <class Visit>
  static __device__ __forceinline__ void each(long long stride, const Visit& visit) {
    const int thread = static_cast<int>(threadIdx.x);
    const int first = thread / kVectors;
    const long long offset = first * stride + thread % kVectors * kWidth;
    const int place = first / kItems * kRun + first % kItems * kRow + thread % kVectors * kWidth;
#pragma unroll
    for (int pass = 0; pass * kThreads < kTotal; ++pass) {
      const int i = pass * kThreads + thread;
      if (kTotal % kThreads != 0 && i >= kTotal) break;
      if constexpr (kWholeRuns) {
        visit(pass * kRows + first, offset + pass * kRows * stride, place + pass * (kRows / kItems * kRun),
              thread % kVectors * kWidth);
      } else {
        const int row = i / kVectors;
        const int column = i % kVectors * kWidth;
        visit(row, row * stride + column, row / kItems * kRun + row % kItems * kRow + column, column);
      }
    }
  }
};
using ChannelVectors = Vectors<kChannels, kChannels, kChannelRun>;
using StateVectors = Vectors<kN, kRowN, kStateRun>;

struct Block {
  const float* x;      // at the block's batch and first channel
  const float* delta;
  const float* z;
  const float* b;      // at the block's batch and group
  const float* c;
  float* y;
  long long channels;
  int length;
  int columns;         // channels of this block that exist

  // Steps and channels that do not exist become zeros, which leave the states as they are.
  template <bool kGuarded>
  __device__ __forceinline__ void copy(float* stage, long long t, int rows) const {
    const float* x_tile = x + t * channels;
    const float* delta_tile = delta + t * channels;
    ChannelVectors::each(channels, [&](int row, long long offset, int place, int column) {
      const bool valid = !kGuarded || (row < rows && column < columns);
      copy_or_clear<4 * kWidth>(stage + place, valid ? x_tile + offset : x, valid);
      copy_or_clear<4 * kWidth>(stage + kDelta + place, valid ? delta_tile + offset : delta, valid);
    });
    constexpr int kStride = kGroups * kN;
    const float* b_tile = b + t * kStride;
    const float* c_tile = c + t * kStride;
    StateVectors::each(kStride, [&](int row, long long offset, int place, int) {
      const bool valid = !kGuarded || row < rows;
      copy_or_clear<4 * kWidth>(stage + kB + place, valid ? b_tile + offset : b, valid);
      copy_or_clear<4 * kWidth>(stage + kC + place, valid ? c_tile + offset : c, valid);
    });
  }

  // Starts the copy of the tile at step t; a tile beyond the end copies nothing but still counts as a group.
  __device__ __forceinline__ void start(float* stage, long long t) const {
    if (t + kTile <= length && columns == kChannels) {
      copy<false>(stage, t, kTile);
    } else if (t < length) {
      copy<true>(stage, t, static_cast<int>(min(static_cast<long long>(kTile), length - t)));
    }
    commit_copies();
  }

  // Gates and writes the tile at step t, where y has taken the place of x.
  __device__ __forceinline__ void store(const float* stage, long long t) const {
    float* y_tile = y + t * channels;
    const float* z_tile = z + t * channels;
    ChannelVectors::each(channels, [&](int row, long long offset, int place, int column) {
      if (t + row >= length || column >= columns) return;
      float values[kWidth];
      load_floats<kWidth, kWidth>(values, stage + place);
      if constexpr (config::kGate) {
        float gates[kWidth];
        load_floats<kWidth, kWidth>(gates, z_tile + offset);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) values[i] = gated(values[i], gates[i]);
      }
      if constexpr (kWidth == 4) {
        *reinterpret_cast<float4*>(y_tile + offset) = make_float4(values[0], values[1], values[2], values[3]);
      } else if constexpr (kWidth == 2) {
        *reinterpret_cast<float2*>(y_tile + offset) = make_float2(values[0], values[1]);
      } else {
        y_tile[offset] = values[0];
      }
    });
  }
};

}  // namespace scan
