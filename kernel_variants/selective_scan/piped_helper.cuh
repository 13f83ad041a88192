// The helper warps of the piped scan: they copy, widen, add the bias, take softplus, sum, gate and store.
#pragma once

#include "piped_layout.cuh"

namespace scan {

__device__ __forceinline__ void copy_16(Element* to, const Element* from) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}

// The same where `valid`, and zeros elsewhere; `from` is then not read.
__device__ __forceinline__ void copy_16_or_clear(Element* to, const Element* from, bool valid) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}

// One helper warp, for its kHelperRows rows of every tile. Channels beyond the last are not copied, since what is
// computed of them is not stored, nor rows beyond the sequence, unless they must leave the states as they are: those
// are zeros.
struct Helper {
  const Element* x;     // at the batch, the block's first channel, and this warp's first row
  const Element* delta;
  const Element* z;
  const Element* b;     // of the block's group
  const Element* c;
  Element* y;
  float* stages;        // at this warp's first row
  Element* landing;     // the same, as copies fill it
  const float* sums;    // at this warp's first group of steps
  long long channels;
  int columns;          // channels of this block that exist
  int lane;

  // act(row, column) for each vector of the first `rows` of this warp's rows and `width` of kColumns columns, by one
  // lane each: the same lane at every call.
  template <int kColumns, typename Act>
  __device__ __forceinline__ void for_vectors(int rows, int width, Act act) const {
    constexpr int kVectors = kColumns / kVector;
#pragma unroll
    for (int pass = 0; pass * 32 < kHelperRows * kVectors; ++pass) {
      const int i = pass * 32 + lane;
      const int row = i / kVectors;
      const int column = i % kVectors * kVector;
      if (row < min(rows, kHelperRows) && column < width) act(row, column);
    }
  }

  template <int kColumns>
  __device__ __forceinline__ void copy_rows(Element* to, const Element* from, long long stride, int rows,
                                            int width) const {
    if constexpr (config::kFinal) {
      for_vectors<kColumns>(kHelperRows, width, [&](int row, int column) {
        copy_16_or_clear(to + row * kRow + column, from + (row < rows ? row * stride + column : 0), row < rows);
      });
    } else {
      for_vectors<kColumns>(rows, width, [&](int row, int column) {
        copy_16(to + row * kRow + column, from + row * stride + column);
      });
    }
  }

  // rows: how many of this warp's rows of the tile lie within the sequence.
  __device__ __forceinline__ void copy(int slot, long long t, int rows) const {
    constexpr int kStride = kGroups * kN;
    Element* to = landing + slot * (kStageFloats * 4 / static_cast<int>(sizeof(Element)));
    copy_rows<kPairsPerBlock>(to, x + t * channels, channels, rows, columns);
    copy_rows<kPairsPerBlock>(to + kDelta, delta + t * channels, channels, rows, columns);
    if constexpr (config::kGate) copy_rows<kPairsPerBlock>(to + kZ, z + t * channels, channels, rows, columns);
    copy_rows<kN>(to + kB, b + t * kStride, kStride, rows, kN);
    copy_rows<kN>(to + kC, c + t * kStride, kStride, rows, kN);
  }

  // Makes a tile whose copies have landed what the compute warps take, each lane of what it copied itself.
  __device__ __forceinline__ void prepare(int slot, int rows, const float (&bias)[kVector]) const {
    float* to = stages + slot * kStageFloats;
    const Element* from = landing + slot * (kStageFloats * 4 / static_cast<int>(sizeof(Element)));
    const int filled = config::kFinal ? kHelperRows : rows;
    if constexpr (kWidens) {
      widen<kPairsPerBlock>(to, from, filled, columns);
      if constexpr (config::kGate) widen<kPairsPerBlock>(to + kZ, from + kZ, filled, columns);
      widen<kN>(to + kB, from + kB, filled, kN);
      widen<kN>(to + kC, from + kC, filled, kN);
    }
    if constexpr (kWidens || kRaw) {
      for_vectors<kPairsPerBlock>(filled, columns, [&](int row, int column) {
        float values[kVector];
        load_floats<kVector, 4>(values, from + kDelta + row * kRow + column);
#pragma unroll
        for (int i = 0; i < kVector; ++i) values[i] = row < rows ? step_size(values[i], bias[i]) : 0.0f;
        store_vector(to + kDelta + row * kRow + column, values);
      });
    }
  }

  template <int kColumns>
  __device__ __forceinline__ void widen(float* to, const Element* from, int rows, int width) const {
    for_vectors<kColumns>(rows, width, [&](int row, int column) {
      float values[kVector];
      load_floats<kVector, 4>(values, from + row * kRow + column);
      store_vector(to + row * kRow + column, values);
    });
  }

  static __device__ __forceinline__ void store_vector(float* to, const float (&values)[kVector]) {
#pragma unroll
    for (int i = 0; i < kVector; i += 4) {
      *reinterpret_cast<float4*>(to + i) = make_float4(values[i], values[i + 1], values[i + 2], values[i + 3]);
    }
  }

  __device__ __forceinline__ void store(const float* stage, const float* from, Element* to,
                                        const float (&skip)[kPairsPerBlock / 32], int rows) const {
#pragma unroll
    for (int column = 0; column < kPairsPerBlock; column += 32) {
#pragma unroll
      for (int step = 0; step < kHelperRows; step += kSteps) {
        float total[kSteps];
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          total[i] = config::kSkip ? stage[(step + i) * kRow + column + lane] * skip[column / 32] : 0.0f;
        }
#pragma unroll
        for (int part = 0; part < kThreadsPerPair; ++part) {
          const int warp = column / 32 * kThreadsPerPair + part;
          const float4 v = *reinterpret_cast<const float4*>(from + (warp * kTileL * 32 + (step * 32 + lane * kSteps)));
          total[0] += v.x, total[1] += v.y, total[2] += v.z, total[3] += v.w;
        }
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          if (step + i < rows && column + lane < columns) {
            if constexpr (config::kGate) total[i] = gated(total[i], stage[(step + i) * kRow + kZ + column + lane]);
            to[(step + i) * channels + column + lane] = total[i];
          }
        }
      }
    }
  }

  // skip_vector, bias_vector: at the block's first channel.
  __device__ __forceinline__ void run(int length, int tiles, const float* skip_vector, const float* bias_vector) const {
    float skip[kPairsPerBlock / 32];
    float bias[kVector];
#pragma unroll
    for (int i = 0; i < kPairsPerBlock / 32; ++i) {
      skip[i] = config::kSkip && 32 * i + lane < columns ? skip_vector[32 * i + lane] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      bias[i] = bias_of(bias_vector, lane % (kPairsPerBlock / kVector) * kVector + i, columns);
    }
#pragma unroll
    for (int tile = 0; tile < kStages; ++tile) {
      copy(tile, tile * kTileL, length - tile * kTileL);
      commit_copies();
    }
    wait_copies<kStages - 1>();
    prepare(0, length, bias);
    arrive(kReady);
    wait_copies<kStages - 2>();
    prepare(1, length - kTileL, bias);
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
      prepare((slot + 2) % kStages, rows - 2 * kTileL, bias);
      if (tile + 2 <= tiles) arrive(kReady + tile % 2);
      slot = slot + 1 == kStages ? 0 : slot + 1;
    }
  }
};

}  // namespace scan
