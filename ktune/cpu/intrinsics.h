// Device functions that kernels call: arithmetic, conversions, cached accesses, atomics.
#pragma once

// min and max of any two arithmetic types, as CUDA overloads them; a NaN loses.
template <class A, class B, class = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
constexpr std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  const T x = static_cast<T>(a), y = static_cast<T>(b);
  return x != x ? y : y < x ? y : x;
}
template <class A, class B, class = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
constexpr std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  const T x = static_cast<T>(a), y = static_cast<T>(b);
  return x != x ? y : x < y ? y : x;
}

inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return powf(10.0f, x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }

inline int __float_as_int(float x) { return ktune_cpu::from_bits<int>(ktune_cpu::to_bits(x)); }
inline unsigned __float_as_uint(float x) { return ktune_cpu::from_bits<unsigned>(ktune_cpu::to_bits(x)); }
inline float __int_as_float(int x) { return ktune_cpu::from_bits<float>(ktune_cpu::to_bits(x)); }
inline float __uint_as_float(unsigned x) { return ktune_cpu::from_bits<float>(ktune_cpu::to_bits(x)); }
inline int __float2int_rn(float x) { return static_cast<int>(nearbyintf(x)); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }
inline int __float2int_rd(float x) { return static_cast<int>(floorf(x)); }
inline int __float2int_ru(float x) { return static_cast<int>(ceilf(x)); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int bit = 0; bit < 32; ++bit) reversed |= (x >> bit & 1u) << (31 - bit);
  return reversed;
}
inline int __mul24(int x, int y) { return x * y; }
inline unsigned __umulhi(unsigned x, unsigned y) { return static_cast<unsigned>(uint64_t{x} * y >> 32); }
inline int __mulhi(int x, int y) { return static_cast<int>(int64_t{x} * y >> 32); }

#define KTUNE_LOAD_(name) \
  template <class T>      \
  T name(const T* at) { return *at; }
KTUNE_LOAD_(__ldg)
KTUNE_LOAD_(__ldca)
KTUNE_LOAD_(__ldcg)
KTUNE_LOAD_(__ldcs)
KTUNE_LOAD_(__ldlu)
KTUNE_LOAD_(__ldcv)
#undef KTUNE_LOAD_
#define KTUNE_STORE_(name) \
  template <class T>       \
  void name(T* at, T value) { *at = value; }
KTUNE_STORE_(__stwb)
KTUNE_STORE_(__stcg)
KTUNE_STORE_(__stcs)
KTUNE_STORE_(__stwt)
#undef KTUNE_STORE_

inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned) {}
inline void __prof_trigger(int) {}
[[noreturn]] inline void __trap() { ktune_cpu::fault("__trap() was called"); }
inline long long clock64() { return ktune_cpu::clock(); }
inline size_t __cvta_generic_to_shared(const void* address) { return ktune_cpu::shared_offset(address); }
inline void* __cvta_shared_to_generic(size_t offset) { return ktune_cpu::shared_pointer(offset); }
inline size_t __cvta_generic_to_global(const void* address) { return reinterpret_cast<size_t>(address); }

// One fiber runs at a time, so a plain read-modify-write is atomic. Other atomics don't race with it.
#define KTUNE_ATOMIC_(name, expression)                                                      \
  template <class T, class V>                                                                \
  __attribute__((noinline, no_sanitize("thread"))) T name(T* at, V given) {                  \
    ktune_cpu::note_atomic(at, sizeof(T), __builtin_return_address(0));                      \
    const T old = *at, value = static_cast<T>(given);                                        \
    *at = static_cast<T>(expression);                                                        \
    return old;                                                                              \
  }
KTUNE_ATOMIC_(atomicAdd, old + value)
KTUNE_ATOMIC_(atomicSub, old - value)
KTUNE_ATOMIC_(atomicExch, value)
KTUNE_ATOMIC_(atomicMin, value < old ? value : old)
KTUNE_ATOMIC_(atomicMax, old < value ? value : old)
KTUNE_ATOMIC_(atomicAnd, old & value)
KTUNE_ATOMIC_(atomicOr, old | value)
KTUNE_ATOMIC_(atomicXor, old ^ value)
KTUNE_ATOMIC_(atomicInc, old >= value ? T{0} : old + 1)
KTUNE_ATOMIC_(atomicDec, old == 0 || old > value ? value : old - 1)
#undef KTUNE_ATOMIC_

template <class T, class C, class V>
__attribute__((noinline, no_sanitize("thread"))) T atomicCAS(T* at, C compare, V value) {
  ktune_cpu::note_atomic(at, sizeof(T), __builtin_return_address(0));
  const T old = *at;
  if (old == static_cast<T>(compare)) *at = static_cast<T>(value);
  return old;
}
