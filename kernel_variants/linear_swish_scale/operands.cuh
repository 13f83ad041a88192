// What an fp32 operand of wgmma.cu is split into, and which products of the parts are summed.
//
//   bf16x3     hi and lo in bf16: lo hi + hi lo + hi hi. Any finite fp32 number and infinities; see split_infinite.
//   fp16_e5m2  hi in fp16, and for the corrections hi and 2^12 lo in e5m2: hi hi + 2^-12 (lo hi + hi lo), the latter in
//              sums of their own. Numbers beyond 65504 give Inf or NaN; below 2^-14 accuracy fades.
//
// Source: Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores ..." (2022).
#pragma once

#include "hopper.cuh"

namespace linear {

constexpr bool kBf16x3 = config::kOperands == config::Operands::bf16x3;
constexpr float kLowScale = kBf16x3 ? 1.0f : 4096.0f;

// Four neighbours along k. low: lo of two each (bf16x3); hi and 2^12 lo of all four (fp16_e5m2).
struct Parts {
  unsigned high[2];
  unsigned low[2];
};

// Two floats as bf16, the first in the low half. kFinite: infinities become the largest number.
template <bool kFinite>
__device__ __forceinline__ unsigned to_bf16x2(float first, float second) {
  unsigned packed;
  if constexpr (kFinite) {
    asm volatile("cvt.rn.satfinite.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  } else {
    asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  }
  return packed;
}

__device__ __forceinline__ unsigned to_f16x2(float first, float second) {
  unsigned packed;
  asm volatile("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  return packed;
}

__device__ __forceinline__ float f16_to_float(unsigned bits) {
  float value;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low; }" : "=f"(value) : "r"(bits));
  return value;
}

__device__ __forceinline__ unsigned two_f16x2_to_e5m2x4(unsigned first, unsigned second) {
  unsigned packed;
  asm volatile("{ .reg .b16 a, b; cvt.rn.satfinite.e5m2x2.f16x2 a, %1; cvt.rn.satfinite.e5m2x2.f16x2 b, %2; mov.b32 %0, {a, b}; }"
      : "=r"(packed)
      : "r"(first), "r"(second));
  return packed;
}

__device__ __forceinline__ unsigned to_e5m2x4(const float (&v)[4]) {
  unsigned packed;
  asm volatile("{ .reg .b16 a, b; cvt.rn.satfinite.e5m2x2.f32 a, %2, %1; cvt.rn.satfinite.e5m2x2.f32 b, %4, %3; "
      "mov.b32 %0, {a, b}; }"
      : "=r"(packed)
      : "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]));
  return packed;
}

// An infinite number of w becomes the largest bf16 and an infinite rest, which costs nothing: Inf - Inf would be NaN.
__device__ __forceinline__ Parts split(const float (&v)[4]) {
  Parts parts;
  if constexpr (kBf16x3) {
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const unsigned high = to_bf16x2<true>(v[2 * pair], v[2 * pair + 1]);
      const float first = v[2 * pair] - __uint_as_float(high << 16);
      const float second = v[2 * pair + 1] - __uint_as_float(high & 0xffff0000u);
      parts.high[pair] = high;
      parts.low[pair] = to_bf16x2<false>(first, second);
    }
  } else {
    float rest[4];
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const unsigned high = to_f16x2(v[2 * pair], v[2 * pair + 1]);
      rest[2 * pair] = (v[2 * pair] - f16_to_float(high)) * kLowScale;
      rest[2 * pair + 1] = (v[2 * pair + 1] - f16_to_float(high >> 16)) * kLowScale;
      parts.high[pair] = high;
    }
    parts.low[0] = two_f16x2_to_e5m2x4(parts.high[0], parts.high[1]);
    parts.low[1] = to_e5m2x4(rest);
  }
  return parts;
}

// The other operand's way: an infinite number is 1 + Inf, so that neither product with a finite one overflows.
__device__ __forceinline__ Parts split_infinite(const float (&v)[4]) {
  Parts parts = split(v);
  if constexpr (kBf16x3) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (!isinf(v[i])) continue;
      const int shift = i % 2 * 16;
      const unsigned sign = v[i] < 0.0f ? 0x8000u : 0u;
      const unsigned keep = ~(0xffffu << shift);
      parts.high[i / 2] = (parts.high[i / 2] & keep) | ((0x3f80u | sign) << shift);
      parts.low[i / 2] = (parts.low[i / 2] & keep) | ((0x7f80u | sign) << shift);
    }
  }
  return parts;
}

// Which of a row's 16-byte chunks takes part `pair` of columns 8t + 4j ... of a slice; thread t's 4 bytes are its t-th.
__device__ __forceinline__ constexpr int high_chunk(int j, int pair) { return 2 * j + pair; }
__device__ __forceinline__ constexpr int low_chunk(int j, int pair) {
  return kBf16x3 ? 4 + 2 * j + pair : 4 + 2 * pair + j;
}

struct Sums {
  float of[64];                          // rounded towards zero at each addition: not for long
  float total[64];
  float correction[kBf16x3 ? 1 : 64];    // 2^12 times what it corrects

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int s = 0; s < 64; ++s) of[s] = total[s] = 0.0f;
    if constexpr (!kBf16x3) {
#pragma unroll
      for (int s = 0; s < 64; ++s) correction[s] = 0.0f;
    }
  }

  // The products must have ended.
  __device__ __forceinline__ void promote() {
#pragma unroll
    for (int s = 0; s < 64; ++s) {
      // Keeps the compiler from reading the sum before the wait.
      asm volatile("" : "+f"(of[s])::"memory");
      total[s] += of[s];
    }
  }

  __device__ __forceinline__ float result(int s) const {
    if constexpr (kBf16x3) return total[s];
    return total[s] + correction[kBf16x3 ? 0 : s] * (1.0f / kLowScale);
  }
};

// One warpgroup's share of a slice of w, 64 rows and 32 columns, as wgmma takes it from registers.
struct Fragments {
  unsigned high[2][4];
  unsigned low[2][4];

  // v: columns 8t + 4j ... of the lane's row, or with half = 1 of the row 8 further on.
  __device__ __forceinline__ void put(int half, int j, const float4& v) {
    const Parts parts = split({v.x, v.y, v.z, v.w});
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      high[j][half + 2 * pair] = parts.high[pair];
      if constexpr (kBf16x3) {
        low[j][half + 2 * pair] = parts.low[pair];
      } else {
        low[pair][half + 2 * j] = parts.low[pair];
      }
    }
  }

  // The products of a slice in order. tile: descriptor of the tile of x, in units of 16 bytes.
  template <int kProduct>
  __device__ __forceinline__ void multiply_with(Sums& sums, unsigned long long tile, int keep) const {
    if constexpr (kBf16x3) {
      constexpr int j = kProduct / 3;
      constexpr bool kSmallFirst = config::kOrder == config::Order::small_first;
      constexpr int kTerm = kSmallFirst ? kProduct % 3 : 2 - kProduct % 3;
      const int kept = kProduct > 0 ? 1 : keep;
      if constexpr (kTerm == 0) multiply<Type::bf16>(sums.of, low[j], tile + high_chunk(j, 0), kept);
      if constexpr (kTerm == 1) multiply<Type::bf16>(sums.of, high[j], tile + low_chunk(j, 0), kept);
      if constexpr (kTerm == 2) multiply<Type::bf16>(sums.of, high[j], tile + high_chunk(j, 0), kept);
    } else if constexpr (kProduct < 2) {
      multiply<Type::f16>(sums.of, high[kProduct], tile + high_chunk(kProduct, 0), kProduct > 0 ? 1 : keep);
    } else {
      multiply<Type::e5m2>(sums.correction, low[3 - kProduct], tile + low_chunk(0, kProduct - 2), 1);
    }
  }
};

}  // namespace linear
