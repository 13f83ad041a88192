// The helper warps of the piped scan: they copy, widen, add the bias, take softplus, sum, gate and store.
#pragma once

#include "piped_copies.cuh"

namespace scan {

// One helper warp, for its kHelperRows rows of every tile.
struct Helper {
  Copies copies;
  Element* y;           // at the batch, the block's first channel, and this warp's first row
  float* stages;
  const float* sums;    // at this warp's first group of steps
  int first_row;        // of this warp, in a tile
  long long channels;
  int columns;          // channels of this block that exist
  int lane;

  // Makes a tile whose copies have landed what the compute warps take, each lane of what it alone changes.
  __device__ __forceinline__ void prepare(int slot, int rows, const float (&bias)[kVector]) const {
    float* to = stages + slot * kStageFloats;
    const Element* from = reinterpret_cast<const Element*>(to + (kWidens ? kTile : 0));
    const int filled = config::kFinal ? kHelperRows : rows;
    if constexpr (kWidens) {
      widen<kPairsPerBlock>(to, from, filled, columns);
      if constexpr (config::kGate) widen<kPairsPerBlock>(to + kZ, from + kZ, filled, columns);
      widen<kN>(to + kB, from + kB, filled, kN);
      widen<kN>(to + kC, from + kC, filled, kN);
    }
    if constexpr (kWidens || kRaw) {
      for_vectors<kPairsPerBlock>(filled, columns, [&](int row, int column) {
        const int at = kDelta + (first_row + row) * kPairsPerBlock + column;
        float values[kVector];
        load_floats<kVector, 4>(values, from + at);
#pragma unroll
        for (int i = 0; i < kVector; ++i) values[i] = row < rows ? step_size(values[i], bias[i]) : 0.0f;
        store_vector(to + at, values);
      });
      if constexpr (kMaps) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
  }

  template <int kColumns>
  __device__ __forceinline__ void widen(float* to, const Element* from, int rows, int width) const {
    for_vectors<kColumns>(rows, width, [&](int row, int column) {
      const int at = (first_row + row) * kColumns + column;
      float values[kVector];
      load_floats<kVector, 4>(values, from + at);
      store_vector(to + at, values);
    });
  }

  static __device__ __forceinline__ void store_vector(float* to, const float (&values)[kVector]) {
#pragma unroll
    for (int i = 0; i < kVector; i += 4) {
      *reinterpret_cast<float4*>(to + i) = make_float4(values[i], values[i + 1], values[i + 2], values[i + 3]);
    }
  }

  // stage: at this warp's first row of x.
  __device__ __forceinline__ void store(const float* stage, const float* from, Element* to,
                                        const float (&skip)[kPairsPerBlock / kWarpColumns], int rows) const {
    // several groups of steps at once where a row is shorter than the lanes are many
    const int later = lane / kWarpColumns * kSteps;
#pragma unroll
    for (int first = 0; first < kPairsPerBlock; first += kWarpColumns) {
      const int column = first + lane % kWarpColumns;
#pragma unroll
      for (int group = 0; group < kHelperRows; group += kSteps * kPartsPerWarp) {
        const int step = group + later;
        float total[kSteps];
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          total[i] = config::kSkip ? stage[(step + i) * kPairsPerBlock + column] * skip[first / kWarpColumns] : 0.0f;
        }
#pragma unroll
        for (int part = 0; part < kThreadsPerPair; ++part) {
          const int thread = (first / kWarpColumns * kThreadsPerPair + part) * kWarpColumns;
          const int at = thread / 32 * kTileL * 32 + step * 32 + (thread % 32 + lane % kWarpColumns) * kSteps;
          const float4 v = *reinterpret_cast<const float4*>(from + at);
          total[0] += v.x, total[1] += v.y, total[2] += v.z, total[3] += v.w;
        }
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          if (step + i < rows && column < columns) {
            if constexpr (config::kGate) {
              total[i] = gated(total[i], stage[kZ + (step + i) * kPairsPerBlock + column]);
            }
            to[(step + i) * channels + column] = total[i];
          }
        }
      }
    }
  }

  // length: rows from this warp's first on; skip_vector, bias_vector: at the block's first channel.
  __device__ __forceinline__ void run(int length, int tiles, const float* skip_vector, const float* bias_vector) {
    float skip[kPairsPerBlock / kWarpColumns];
    float bias[kVector];
#pragma unroll
    for (int i = 0; i < kPairsPerBlock / kWarpColumns; ++i) {
      const int column = i * kWarpColumns + lane % kWarpColumns;
      skip[i] = config::kSkip && kHelpersSum && column < columns ? skip_vector[column] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      bias[i] = bias_of(bias_vector, lane % (kPairsPerBlock / kVector) * kVector + i, columns);
    }
#pragma unroll
    for (int tile = 0; tile < kStages; ++tile) copies.start(tile, tile, tiles, length - tile * kTileL);
    copies.wait_for_next<kStages - 1>(0, tiles);
    prepare(0, length, bias);
    meet();  // the first tile is ready
    copies.wait_for_next<kStages - 2>(1, tiles);
    prepare(1, length - kTileL, bias);
    meet();  // the second tile is ready
    int slot = 0;
    for (int tile = 0; tile < tiles; ++tile) {
      meet();  // the tile was computed
      const long long t = static_cast<long long>(tile) * kTileL;
      const int rows = length - tile * kTileL;
      if constexpr (kHelpersSum) {
        store(stages + slot * kStageFloats + first_row * kPairsPerBlock, sums + tile % 2 * kSumFloats, y + t * channels,
              skip, rows);
        __syncwarp();  // every lane has read x before its rows are filled again
      }
      copies.start(slot, tile + kStages, tiles, rows - kStages * kTileL);
      copies.wait_for_next<kStages - 2>(tile + 2, tiles);
      prepare((slot + 2) % kStages, rows - 2 * kTileL, bias);
      if (tile + 2 <= tiles) meet();  // the tile after the next is ready
      slot = slot + 1 == kStages ? 0 : slot + 1;
    }
  }
};

}  // namespace scan
