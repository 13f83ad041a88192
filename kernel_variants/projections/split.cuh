// An fp32 number as the sum of two of 16 bits, hi and lo: x w is then hi hi + hi lo + lo hi, but for what lo rounds off.
//
//   bf16_gemm.cu  in bf16, any number: 2^-17 of x w is lost.
//   wgmma.cu      in fp16, of numbers scaled by a power of two: 2^-22, and 2^-25 of a unit, of the scaled number is lost.
//                 So a row's largest must lie in a range, see held_in_f16.
//
// Source: Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores ..." (2022).
#pragma once

namespace projections {

// Four neighbours along k, two bf16 in a word, the first in its low half.
struct Parts {
  unsigned high[2];
  unsigned low[2];
};

// ---- bf16

#ifdef KTUNE_CPU
// Round to nearest, ties to even. kFinite: infinities become the largest number.
template <bool kFinite>
inline unsigned to_bf16(float value) {
  const unsigned bits = __float_as_uint(value);
  if (value != value) return 0x7fffu;
  const unsigned rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  return kFinite && (rounded & 0x7fffu) == 0x7f80u ? (rounded & 0x8000u) | 0x7f7fu : rounded;
}
#endif

template <bool kFinite>
__device__ __forceinline__ unsigned to_bf16x2(float first, float second) {
#ifdef KTUNE_CPU
  return to_bf16<kFinite>(second) << 16 | to_bf16<kFinite>(first);
#else
  unsigned packed;
  if constexpr (kFinite) {
    asm volatile("cvt.rn.satfinite.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  } else {
    asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  }
  return packed;
#endif
}

// An infinite number of x becomes the largest bf16 and an infinite rest: Inf - Inf would be NaN.
__device__ __forceinline__ Parts split(const float4& v) {
  const float of[4] = {v.x, v.y, v.z, v.w};
  Parts parts;
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    const unsigned high = to_bf16x2<true>(of[2 * pair], of[2 * pair + 1]);
    const float first = of[2 * pair] - __uint_as_float(high << 16);
    const float second = of[2 * pair + 1] - __uint_as_float(high & 0xffff0000u);
    parts.high[pair] = high;
    parts.low[pair] = to_bf16x2<false>(first, second);
  }
  return parts;
}

// ---- fp16

#ifdef KTUNE_CPU
// Round to nearest, ties to even.
inline unsigned to_f16(float value) {
  const unsigned sign = __float_as_uint(value) >> 16 & 0x8000u;
  const float size = fabsf(value);
  if (value != value) return 0x7fffu;
  if (size >= 65520.0f) return sign | 0x7c00u;
  if (size < 0x1p-14f) return sign | static_cast<unsigned>(rintf(size * 0x1p24f));
  const unsigned bits = __float_as_uint(size);
  return sign | (((bits + 0xfffu + (bits >> 13 & 1u)) >> 13) - (112u << 10));
}

inline float f16_to_float(unsigned word) {
  const unsigned bits = word & 0x7fffu;
  float size = static_cast<float>(bits) * 0x1p-24f;
  if (bits >= 0x7c00u) {
    size = bits == 0x7c00u ? INFINITY : NAN;
  } else if (bits >= 0x400u) {
    size = __uint_as_float((bits << 13) + (112u << 23));
  }
  return (word & 0x8000u) != 0 ? -size : size;
}
#else
__device__ __forceinline__ float f16_to_float(unsigned word) {
  float value;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low; }" : "=f"(value) : "r"(word));
  return value;
}
#endif

__device__ __forceinline__ unsigned to_f16x2(float first, float second) {
#ifdef KTUNE_CPU
  return to_f16(second) << 16 | to_f16(first);
#else
  unsigned packed;
  asm volatile("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  return packed;
#endif
}

// scale: a power of two. Numbers beyond 65504 / scale are lost.
__device__ __forceinline__ Parts split_f16(const float4& v, float scale) {
  const float of[4] = {v.x * scale, v.y * scale, v.z * scale, v.w * scale};
  Parts parts;
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    const unsigned high = to_f16x2(of[2 * pair], of[2 * pair + 1]);
    parts.high[pair] = high;
    parts.low[pair] = to_f16x2(of[2 * pair] - f16_to_float(high), of[2 * pair + 1] - f16_to_float(high >> 16));
  }
  return parts;
}

// Whether hi and lo lose at most 2^-21 of the largest number of a row. Of a row of zeros they lose nothing.
__device__ __forceinline__ bool held_in_f16(float largest, float scale) {
  return largest == 0.0f || (largest * scale >= 0x1p-4f && largest * scale <= 65504.0f);
}

__device__ __forceinline__ float largest_of(float largest, const float4& v) {
  return fmaxf(fmaxf(fmaxf(largest, fabsf(v.x)), fmaxf(fabsf(v.y), fabsf(v.z))), fabsf(v.w));
}

}  // namespace projections
