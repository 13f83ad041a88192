// Hopper's tensor cores and per-thread copies, as far as wgmma.cu uses them. Source: PTX ISA, sections "wgmma", "cp.async".
//
// On ktune's CPU executor the product is computed from the same registers and the same bytes of shared memory.
#pragma once

#include "split.cuh"

namespace projections {

constexpr int kRowBytes = 128;

// ---- copies: 16 bytes, or zeros

__device__ __forceinline__ void copy_or_clear(void* to, const float* from, bool copied) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(copied ? 16 : 0)
               : "memory");
}

__device__ __forceinline__ void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until at most kPending of this thread's groups of copies are under way.
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// ---- tensor cores

// What threads wrote to shared memory, tensor cores may read after the next barrier.
__device__ __forceinline__ void publish_tiles() {
#ifndef KTUNE_CPU
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Before the first of several products: the registers that they read have been written.
__device__ __forceinline__ void begin_products() {
#ifndef KTUNE_CPU
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

// The products since the last call are one group.
__device__ __forceinline__ void close_products() {
#ifndef KTUNE_CPU
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// Until at most kPending groups of products are under way.
template <int kPending>
__device__ __forceinline__ void wait_products() {
#ifndef KTUNE_CPU
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#endif
}

// Keeps the compiler from reading sums before the wait above it.
template <int kSums>
__device__ __forceinline__ void pin(float (&sums)[kSums]) {
#ifndef KTUNE_CPU
#pragma unroll
  for (int s = 0; s < kSums; ++s) asm volatile("" : "+f"(sums[s])::"memory");
#endif
}

#ifdef KTUNE_CPU

template <int kSums>
inline void multiply(float (&d)[kSums], const unsigned (&a)[4], const char* tile, int chunk, int keep) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  unsigned words[2][8];  // of the lane's two rows of a, two k each
  for (int t = 0; t < 4; ++t) {
    for (int i = 0; i < 4; ++i) words[i % 2][t + i / 2 * 4] = __shfl_sync(0xffffffffu, a[i], lane / 4 * 4 + t);
  }
  for (int s = 0; s < kSums; ++s) {
    const int n = s / 4 * 8 + lane % 4 * 2 + s % 2;
    float sum = keep != 0 ? d[s] : 0.0f;
    for (int w = 0; w < 8; ++w) {
      const char* at = tile + n * kRowBytes + ((chunk + w / 4) ^ n % 8) * 16 + w % 4 * 4;
      const unsigned b = *reinterpret_cast<const unsigned*>(at);
      sum = fmaf(f16_to_float(words[s % 4 / 2][w]), f16_to_float(b), sum);
      sum = fmaf(f16_to_float(words[s % 4 / 2][w] >> 16), f16_to_float(b >> 16), sum);
    }
    d[s] = sum;
  }
}

#else

// A K-major tile of 128-byte rows, 128-byte swizzle: groups of 8 rows are 1024 bytes apart.
__device__ __forceinline__ unsigned long long tile_descriptor(unsigned address) {
  return (static_cast<unsigned long long>(address & 0x3ffff) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}

#define KTUNE_8(d, i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define KTUNE_24(d, i) KTUNE_8(d, i), KTUNE_8(d, i + 8), KTUNE_8(d, i + 16)

#define KTUNE_0_TO_23 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, " \
  "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23"
#define KTUNE_24_TO_47 \
  "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, " \
  "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define KTUNE_48_TO_71 \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, " \
  "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71"

#define KTUNE_MULTIPLY(columns, sums, inputs, keeping, ...)                           \
  asm volatile(                                                                       \
      "{\n"                                                                           \
      ".reg .pred keep;\n"                                                            \
      "setp.ne.b32 keep, " keeping ", 0;\n"                                           \
      "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32.f16.f16 {" sums "}, "      \
      inputs ", keep, 1, 1, 0;\n"                                                     \
      "}\n"                                                                           \
      : __VA_ARGS__                                                                   \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep))

// d [64 rows, 2 kSums columns] (+)= a [64 rows, 16] b [2 kSums, 16]^T; the former d is dropped where keep is 0. b: the 32
// bytes from `chunk` on of each row of the tile, which starts at a multiple of 1024 bytes.
template <int kSums>
__device__ __forceinline__ void multiply(float (&d)[kSums], const unsigned (&a)[4], const char* tile, int chunk, int keep) {
  static_assert(kSums == 24 || kSums == 48 || kSums == 72, "instructions of 48, 96 and 144 columns");
  const unsigned long long b = tile_descriptor(static_cast<unsigned>(__cvta_generic_to_shared(tile))) + chunk;
  if constexpr (kSums == 24) {
    KTUNE_MULTIPLY("48", KTUNE_0_TO_23, "{%24, %25, %26, %27}, %28", "%29", KTUNE_24(d, 0));
  } else if constexpr (kSums == 48) {
    KTUNE_MULTIPLY("96", KTUNE_0_TO_23 ", " KTUNE_24_TO_47, "{%48, %49, %50, %51}, %52", "%53", KTUNE_24(d, 0),
                   KTUNE_24(d, 24));
  } else {
    KTUNE_MULTIPLY("144", KTUNE_0_TO_23 ", " KTUNE_24_TO_47 ", " KTUNE_48_TO_71, "{%72, %73, %74, %75}, %76", "%77",
                   KTUNE_24(d, 0), KTUNE_24(d, 24), KTUNE_24(d, 48));
  }
}

#undef KTUNE_MULTIPLY
#undef KTUNE_48_TO_71
#undef KTUNE_24_TO_47
#undef KTUNE_0_TO_23
#undef KTUNE_24
#undef KTUNE_8

#endif

}  // namespace projections
