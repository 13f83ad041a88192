// What an fp32 operand of wgmma.cu is split into, and which products of the parts are summed.
//
//   tf32       rounded: hi hi. 11 bits of significand are too few for fp32's accuracy.
//   tf32x3     hi and lo in tf32: lo hi + hi lo + hi hi. Any finite fp32 number and infinities; see split_infinite.
//   bf16x3     the same in bf16, of 16 bits together.
//   fp16x3     hi and 2^11 lo in fp16, of x and of 2^8 w: hi hi + 2^-11 (lo hi + hi lo), the latter in sums of their own.
//              x beyond 65504 and w beyond 255 give Inf or NaN; below 2^-14 and 2^-22 accuracy fades.
//   fp16_e5m2  hi in fp16, and for the corrections hi and 2^12 lo in e5m2: hi hi + 2^-12 (lo hi + hi lo), the latter in
//              sums of their own. Numbers beyond 65504 give Inf or NaN; below 2^-14 accuracy fades.
//
// Source: Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores ..." (2022).
#pragma once

#include "hopper.cuh"

namespace linear {

using config::Operands;
constexpr bool kTf32 = config::kOperands == Operands::tf32 || config::kOperands == Operands::tf32x3;
constexpr bool kBf16x3 = config::kOperands == Operands::bf16x3;
constexpr bool kFp16x3 = config::kOperands == Operands::fp16x3;
constexpr bool kE5m2 = config::kOperands == Operands::fp16_e5m2;
// Whether there is a lo, whether its products have sums of their own, and whether infinities survive the split.
constexpr bool kRest = config::kOperands != Operands::tf32;
constexpr bool kOwnSums = kFp16x3 || kE5m2;
constexpr bool kInfinite = kBf16x3 || config::kOperands == Operands::tf32x3;
constexpr float kLowScale = kE5m2 ? 4096.0f : kFp16x3 ? 2048.0f : 1.0f;
constexpr float kWScale = kFp16x3 ? 256.0f : 1.0f;

constexpr int kWords = kTf32 ? 4 : 2;         // of one part of four neighbours
constexpr int kSteps = kTf32 ? 4 : 2;         // products of one kind in a slice of 32 columns
constexpr int kTerms = kRest ? 3 : 1;         // kinds of products
constexpr int kXTiles = kTf32 && kRest ? 2 : 1;    // of 128 bytes a row, for a slice of x
// Of a slice's products, and how many of them come before each piece of other work.
constexpr int kHalf = kE5m2 ? 2 : kTerms * kSteps / 2;
constexpr int kThird = kTerms == 3 ? kHalf / 3 : 1;

// Four neighbours along k. A word of low: lo of one (tf32x3) or two; hi and 2^12 lo of all four (fp16_e5m2).
struct Parts {
  unsigned high[kWords];
  unsigned low[kWords];
};

// kFinite: infinities become the largest number.
template <bool kFinite>
__device__ __forceinline__ unsigned to_tf32(float value) {
  unsigned rounded;
  if constexpr (kFinite) {
    asm volatile("cvt.rna.satfinite.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(value));
  } else {
    asm volatile("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(value));
  }
  return rounded;
}

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

// An infinite number of w becomes the largest one and an infinite rest, which costs nothing: Inf - Inf would be NaN.
__device__ __forceinline__ Parts split(const float (&v)[4]) {
  Parts parts;
  if constexpr (kTf32) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      parts.high[i] = to_tf32<kRest>(v[i]);
      if constexpr (kRest) parts.low[i] = to_tf32<false>(v[i] - __uint_as_float(parts.high[i]));
    }
  } else if constexpr (kBf16x3) {
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
    if constexpr (kFp16x3) {
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) parts.low[pair] = to_f16x2(rest[2 * pair], rest[2 * pair + 1]);
    } else {
      parts.low[0] = two_f16x2_to_e5m2x4(parts.high[0], parts.high[1]);
      parts.low[1] = to_e5m2x4(rest);
    }
  }
  return parts;
}

// The other operand's way: an infinite number is 1 + Inf, so that neither product with a finite one overflows.
__device__ __forceinline__ Parts split_infinite(const float (&v)[4]) {
  Parts parts = split(v);
  if constexpr (kTf32 && kInfinite) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (!isinf(v[i])) continue;
      parts.high[i] = v[i] < 0.0f ? 0xbf800000u : 0x3f800000u;
      parts.low[i] = __float_as_uint(v[i]);
    }
  } else if constexpr (kInfinite) {
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

// Which of a row's 16-byte chunks takes a word of columns 8t + 4j ... of a slice; thread t's 4 bytes are its t-th. A
// row has 8 chunks in each tile.
__device__ __forceinline__ constexpr int high_chunk(int j, int word) { return kWords * j + word; }
__device__ __forceinline__ constexpr int low_chunk(int j, int word) {
  return 2 * kWords + (kE5m2 ? 2 * word + j : kWords * j + word);
}

// Of a chunk from the first of its row, in units of 16 bytes; tiles have 128 rows.
__device__ __forceinline__ constexpr int chunk_offset(int chunk) { return chunk / 8 * (128 * 8) + chunk % 8; }

struct Sums {
  float of[64];                           // rounded towards zero at each addition: not for long
  float total[64];
  float correction[kOwnSums ? 64 : 1];    // kLowScale times what it corrects

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int s = 0; s < 64; ++s) of[s] = total[s] = 0.0f;
    if constexpr (kOwnSums) {
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
    if constexpr (!kOwnSums) return total[s];
    const float sum = total[s] + correction[kOwnSums ? s : 0] * (1.0f / kLowScale);
    return kWScale == 1.0f ? sum : sum * (1.0f / kWScale);
  }
};

// Of the products with a lo: `own` where there are as many.
template <int kCount>
__device__ __forceinline__ float (&small_sums(float (&of)[64], float (&own)[kCount]))[64] {
  if constexpr (kCount == 64) {
    return own;
  } else {
    return of;
  }
}

// One warpgroup's share of a slice of w, 64 rows and 32 columns, as wgmma takes it from registers.
struct Fragments {
  unsigned high[kSteps][4];
  unsigned low[kSteps][4];

  // v: columns 8t + 4j ... of the lane's row, or with half = 1 of the row 8 further on.
  __device__ __forceinline__ void put(int half, int j, const float4& v) {
    const Parts parts = kWScale == 1.0f ? split({v.x, v.y, v.z, v.w})
                                        : split({v.x * kWScale, v.y * kWScale, v.z * kWScale, v.w * kWScale});
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      const int step = kWords / 2 * j + word / 2;
      const int place = half + 2 * (word % 2);
      high[step][place] = parts.high[word];
      if constexpr (kE5m2) {
        low[word][half + 2 * j] = parts.low[word];
      } else if constexpr (kRest) {
        low[step][place] = parts.low[word];
      }
    }
  }

  // Products kBegin to kEnd - 1 of a slice. tile: descriptor of the tiles of x, in units of 16 bytes. keep: 0 drops the
  // sums so far, by the first product that adds to them.
  template <int kBegin, int kEnd>
  __device__ __forceinline__ void multiply_with(Sums& sums, unsigned long long tile, int keep) const {
    if constexpr (kBegin < kEnd) {
      multiply_once<kBegin>(sums, tile, keep);
      multiply_with<kBegin + 1, kEnd>(sums, tile, keep);
    }
  }

  template <int kProduct>
  __device__ __forceinline__ void multiply_once(Sums& sums, unsigned long long tile, int keep) const {
    if constexpr (!kE5m2) {
      constexpr Type kType = kTf32 ? Type::tf32 : kBf16x3 ? Type::bf16 : Type::f16;
      constexpr int kStep = kProduct / kTerms;
      constexpr bool kSmallFirst = config::kOrder == config::Order::small_first;
      constexpr int kTerm = kTerms == 1 ? 2 : kSmallFirst ? kProduct % 3 : 2 - kProduct % 3;
      constexpr int kHighPlace = chunk_offset(2 * kStep);
      constexpr int kLowPlace = chunk_offset(2 * kWords + 2 * kStep);
      constexpr bool kFirst = kOwnSums ? kStep == 0 : kProduct == 0;
      float(&small)[64] = small_sums(sums.of, sums.correction);
      const int kept = kFirst && (!kOwnSums || kTerm == 2) ? keep : 1;
      if constexpr (kTerm == 0) multiply<kType>(small, low[kStep], tile + kHighPlace, kept);
      if constexpr (kTerm == 1) multiply<kType>(small, high[kStep], tile + kLowPlace, kept);
      if constexpr (kTerm == 2) multiply<kType>(sums.of, high[kStep], tile + kHighPlace, kept);
    } else if constexpr (kProduct < 2) {
      multiply<Type::f16>(sums.of, high[kProduct], tile + high_chunk(kProduct, 0), kProduct > 0 ? 1 : keep);
    } else {
      multiply<Type::e5m2>(small_sums(sums.of, sums.correction), low[3 - kProduct], tile + low_chunk(0, kProduct - 2), 1);
    }
  }
};

}  // namespace linear
