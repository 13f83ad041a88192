// An fp32 number as the sum of two bf16 ones, hi and lo: x w is then hi hi + hi lo + lo hi, but for 2^-17 of it.
//
// Source: Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores ..." (2022).
#pragma once

namespace projections {

// Four neighbours along k, two bf16 in a word, the first in its low half.
struct Parts {
  unsigned high[2];
  unsigned low[2];
};

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

// The weights' way: an infinite number is 1 + Inf, so that neither product with a finite one overflows.
__device__ __forceinline__ Parts split_infinite(const float4& v) {
  const float of[4] = {v.x, v.y, v.z, v.w};
  Parts parts = split(v);
  // seldom
  if (fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))) < INFINITY) return parts;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (!isinf(of[i])) continue;
    const int shift = i % 2 * 16;
    const unsigned sign = of[i] < 0.0f ? 0x8000u : 0u;
    const unsigned keep = ~(0xffffu << shift);
    parts.high[i / 2] = (parts.high[i / 2] & keep) | ((0x3f80u | sign) << shift);
    parts.low[i / 2] = (parts.low[i / 2] & keep) | ((0x7f80u | sign) << shift);
  }
  return parts;
}

}  // namespace projections
