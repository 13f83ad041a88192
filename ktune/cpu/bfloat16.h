// bfloat16 as cuda_bf16.h has it: conversions that round to nearest even, and arithmetic that rounds each result.
#pragma once

struct __nv_bfloat16_raw { unsigned short x; };

struct alignas(2) __nv_bfloat16 {
  __nv_bfloat16() = default;
  constexpr __nv_bfloat16(const __nv_bfloat16_raw& raw) : bits_(raw.x) {}
  __nv_bfloat16(float value) : bits_(rounded(value)) {}
  __nv_bfloat16(double value) : __nv_bfloat16(static_cast<float>(value)) {}
  __nv_bfloat16(int value) : __nv_bfloat16(static_cast<float>(value)) {}
  operator float() const {
    const uint32_t wide = static_cast<uint32_t>(bits_) << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
  }
  operator __nv_bfloat16_raw() const { return {bits_}; }
  __nv_bfloat16& operator+=(const __nv_bfloat16& other) { return *this = float(*this) + float(other); }
  __nv_bfloat16& operator-=(const __nv_bfloat16& other) { return *this = float(*this) - float(other); }
  __nv_bfloat16& operator*=(const __nv_bfloat16& other) { return *this = float(*this) * float(other); }
  __nv_bfloat16& operator/=(const __nv_bfloat16& other) { return *this = float(*this) / float(other); }

 private:
  // To nearest, ties to even; every NaN becomes 0x7fff, as CUDA's conversion makes it.
  static unsigned short rounded(float value) {
    uint32_t wide;
    memcpy(&wide, &value, sizeof wide);
    if ((wide & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return static_cast<unsigned short>((wide + 0x7fffu + (wide >> 16 & 1u)) >> 16);
  }

  unsigned short bits_;
};

struct alignas(4) __nv_bfloat162 { __nv_bfloat16 x, y; };

using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

#define KTUNE_ARITHMETIC_(symbol)                                                       \
  inline __nv_bfloat16 operator symbol(const __nv_bfloat16& a, const __nv_bfloat16& b) { \
    return float(a) symbol float(b);                                                    \
  }
KTUNE_ARITHMETIC_(+)
KTUNE_ARITHMETIC_(-)
KTUNE_ARITHMETIC_(*)
KTUNE_ARITHMETIC_(/)
#undef KTUNE_ARITHMETIC_
inline __nv_bfloat16 operator-(const __nv_bfloat16& a) { return -float(a); }

inline __nv_bfloat16 __float2bfloat16(float x) { return x; }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return x; }
inline __nv_bfloat16 __double2bfloat16(double x) { return x; }
inline float __bfloat162float(__nv_bfloat16 x) { return x; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short x) { return __nv_bfloat16_raw{x}; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return __nv_bfloat16_raw(x).x; }

inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {x, y}; }
inline __nv_bfloat162 __float22bfloat162_rn(float2 v) { return {v.x, v.y}; }
inline __nv_bfloat162 __float2bfloat162_rn(float x) { return {x, x}; }
inline float2 __bfloat1622float2(__nv_bfloat162 v) { return {float(v.x), float(v.y)}; }
inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v) { return v.x; }
inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v) { return v.y; }
inline float __low2float(__nv_bfloat162 v) { return v.x; }
inline float __high2float(__nv_bfloat162 v) { return v.y; }
