// CUDA's execution model for a host compiler: included before a kernel's unchanged source, it makes that source C++20.
//
// Each CUDA thread is a fiber (runtime.cpp) and blocks run one after another. `__shared__` declarations, inline PTX and
// the table of kernels are rewritten by source.py in terms of what is declared here.
// Source of the semantics: CUDA C++ Programming Guide, "C++ Language Extensions"; PTX ISA, "shfl.sync", "cp.async".
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <type_traits>
#include <utility>

#include "vector_types.h"
#include "bfloat16.h"

#define KTUNE_CPU 1
#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
// What source.py does not rewrite; blocks run one after another, so one copy serves them all.
#define __shared__ static
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(bytes) alignas(bytes)
#define __noinline__ __attribute__((noinline))
#define __forceinline__ __inline__ __attribute__((always_inline))

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;

namespace ktune_cpu {

// Where a thread waits. Threads meet only at the same site.
struct Site {
  const char* operation;
  const char* file;
  int line;
};

enum class Exchange : uint8_t { sync, shuffle_index, shuffle_up, shuffle_down, shuffle_xor, ballot, all, any, match };
enum class Vote : uint8_t { none, count, conjunction, disjunction };

// Waits for the lanes of `mask`; what this lane receives of their values.
uint64_t meet_warp(Exchange exchange, unsigned mask, uint64_t value, int argument, int width, Site site);
// Waits for the whole block (id 0, threads 0) or for `threads` of it at a named barrier.
int meet_block(int id, int threads, Vote vote, bool predicate, Site site);
// Counts at a named barrier without waiting.
void arrive_block(int id, int threads, Site site);

unsigned active_lanes();
unsigned active_lane();
void* dynamic_shared();
// The block's memory of one `__shared__` declaration, known by the place of `name` in memory.
void* static_shared(const char* name, size_t bytes, size_t alignment);
size_t shared_offset(const void* address);
void* shared_pointer(size_t offset);

// cp.async: the copy lands at the wait, at once, or at random, as the schedule says. Missing bytes are zeros.
void copy_async(void* to, const void* from, int bytes, int valid_bytes);
void commit_copies();
void wait_copies(int pending_groups);
void wait_all_copies();

void note_atomic(const void* address, size_t bytes, const void* place);
long long clock();
[[noreturn]] void fault(const char* format, ...);
[[noreturn]] void not_executable(const char* what);
[[noreturn]] void failed_assertion(const char* condition, const char* file, int line);

// A kernel as the launcher sees it: `invoke` takes an array of pointers to the arguments, as cuLaunchKernel does.
// kinds: one letter an argument: p(ointer), i(nt32), u(int32), l(ong 64), U(nsigned 64), f(loat), d(ouble), ?.
struct Kernel {
  const char* name;
  void (*invoke)(void* const* arguments);
  const char* kinds;
};
extern const Kernel kernels[];
extern const int kernel_count;

template <class T>
constexpr char kind_of() {
  if constexpr (std::is_pointer_v<T>) return 'p';
  if constexpr (std::is_same_v<T, float>) return 'f';
  if constexpr (std::is_same_v<T, double>) return 'd';
  if constexpr (std::is_integral_v<T> && sizeof(T) == 4) return std::is_signed_v<T> ? 'i' : 'u';
  if constexpr (std::is_integral_v<T> && sizeof(T) == 8) return std::is_signed_v<T> ? 'l' : 'U';
  return '?';
}

template <class... Parameters, size_t... kIndices>
void invoke_with(void (*kernel)(Parameters...), void* const* arguments, std::index_sequence<kIndices...>) {
  kernel(*static_cast<std::remove_cv_t<Parameters>*>(arguments[kIndices])...);
}

template <auto kKernel, class Signature = decltype(kKernel)>
struct Launchable;

template <auto kKernel, class... Parameters>
struct Launchable<kKernel, void (*)(Parameters...)> {
  static constexpr char kKinds[] = {kind_of<std::remove_cv_t<Parameters>>()..., '\0'};
  static void invoke(void* const* arguments) {
    invoke_with(kKernel, arguments, std::index_sequence_for<Parameters...>{});
  }
  static constexpr Kernel named(const char* name) { return {name, &invoke, kKinds}; }
};

template <class T>
uint64_t to_bits(T value) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  return bits;
}

template <class T>
T from_bits(uint64_t bits) {
  T value;
  memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace ktune_cpu

// The arguments that tell a call's file and line.
#define KTUNE_SITE_ const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define KTUNE_AT_(operation) ktune_cpu::Site{operation, file, line}

inline void __syncthreads(KTUNE_SITE_) {
  ktune_cpu::meet_block(0, 0, ktune_cpu::Vote::none, false, KTUNE_AT_("__syncthreads"));
}
inline int __syncthreads_count(int predicate, KTUNE_SITE_) {
  return ktune_cpu::meet_block(0, 0, ktune_cpu::Vote::count, predicate != 0, KTUNE_AT_("__syncthreads_count"));
}
inline int __syncthreads_and(int predicate, KTUNE_SITE_) {
  return ktune_cpu::meet_block(0, 0, ktune_cpu::Vote::conjunction, predicate != 0, KTUNE_AT_("__syncthreads_and"));
}
inline int __syncthreads_or(int predicate, KTUNE_SITE_) {
  return ktune_cpu::meet_block(0, 0, ktune_cpu::Vote::disjunction, predicate != 0, KTUNE_AT_("__syncthreads_or"));
}
inline void __syncwarp(unsigned mask = 0xffffffffu, KTUNE_SITE_) {
  ktune_cpu::meet_warp(ktune_cpu::Exchange::sync, mask, 0, 0, 32, KTUNE_AT_("__syncwarp"));
}

#define KTUNE_SHUFFLE_(name, kind, Argument)                                                            \
  template <class T>                                                                                    \
  T name(unsigned mask, T value, Argument argument, int width = 32, KTUNE_SITE_) {                      \
    return ktune_cpu::from_bits<T>(ktune_cpu::meet_warp(ktune_cpu::Exchange::kind, mask,                \
                                                        ktune_cpu::to_bits(value),                      \
                                                        static_cast<int>(argument), width, KTUNE_AT_(#name))); \
  }
KTUNE_SHUFFLE_(__shfl_sync, shuffle_index, int)
KTUNE_SHUFFLE_(__shfl_up_sync, shuffle_up, unsigned)
KTUNE_SHUFFLE_(__shfl_down_sync, shuffle_down, unsigned)
KTUNE_SHUFFLE_(__shfl_xor_sync, shuffle_xor, int)
#undef KTUNE_SHUFFLE_

inline unsigned __ballot_sync(unsigned mask, int predicate, KTUNE_SITE_) {
  return static_cast<unsigned>(
      ktune_cpu::meet_warp(ktune_cpu::Exchange::ballot, mask, predicate != 0, 0, 32, KTUNE_AT_("__ballot_sync")));
}
inline int __any_sync(unsigned mask, int predicate, KTUNE_SITE_) {
  return static_cast<int>(
      ktune_cpu::meet_warp(ktune_cpu::Exchange::any, mask, predicate != 0, 0, 32, KTUNE_AT_("__any_sync")));
}
inline int __all_sync(unsigned mask, int predicate, KTUNE_SITE_) {
  return static_cast<int>(
      ktune_cpu::meet_warp(ktune_cpu::Exchange::all, mask, predicate != 0, 0, 32, KTUNE_AT_("__all_sync")));
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value, KTUNE_SITE_) {
  return static_cast<unsigned>(ktune_cpu::meet_warp(ktune_cpu::Exchange::match, mask, ktune_cpu::to_bits(value), 0, 32,
                                                    KTUNE_AT_("__match_any_sync")));
}
inline unsigned __activemask() { return ktune_cpu::active_lanes(); }

#include "intrinsics.h"
#include "ptx.h"

#undef assert
#define assert(condition) \
  ((condition) ? void(0) : ktune_cpu::failed_assertion(#condition, __FILE__, __LINE__))
