// Hopper's barriers, bulk copies and clusters, as far as wgmma.cu uses them. Source: PTX ISA, sections "mbarrier",
// "cp.async.bulk", "cp.async.bulk.tensor", "barrier.cluster", "griddepcontrol".
#pragma once

namespace linear {

// What a launch passes by value; the driver has encoded it.
struct alignas(64) TensorMap {
  char encoded[128];
};

__device__ __forceinline__ unsigned shared_address(const void* at) {
  return static_cast<unsigned>(__cvta_generic_to_shared(at));
}

// ---- barriers

__device__ __forceinline__ void init_barrier(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

// Makes initialised barriers known to copies and to the cluster's other blocks.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// At the same barrier of another block of the cluster. Without .cluster scope, which would wait for all of memory.
__device__ __forceinline__ void arrive_at(unsigned barrier, int block) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}\n" ::"r"(barrier),
      "r"(block)
      : "memory");
}

__device__ __forceinline__ void arrive_expecting(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void wait(unsigned barrier, int phase) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra.uni finished;\n"
      "bra.uni again;\n"
      "finished:\n"
      "}\n" ::"r"(barrier),
      "r"(phase)
      : "memory");
}

// ---- clusters and dependent launches

// kRelease: what this thread did in other blocks' memory is done before the others go on.
template <bool kRelease>
__device__ __forceinline__ void arrive_in_cluster() {
  if constexpr (kRelease) {
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  } else {
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
  }
}

__device__ __forceinline__ void wait_for_cluster() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// The next launch may start; what this one writes it still waits for.
__device__ __forceinline__ void let_dependents_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Until the launch before this one has ended and its writes are seen, by bulk copies too.
__device__ __forceinline__ void wait_for_predecessor() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// ---- bulk copies: kHinted ones tell L2 how long to keep what they read

__device__ __forceinline__ unsigned long long evict_first() {
  unsigned long long policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ unsigned long long evict_last() {
  unsigned long long policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// The box of a two-dimensional map that begins at this column and row.
template <bool kHinted>
__device__ __forceinline__ void copy_box(unsigned to, const TensorMap& map, int column, int row, unsigned barrier,
                                         unsigned long long policy) {
  if constexpr (kHinted) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(&map), "r"(column), "r"(row), "r"(barrier), "l"(policy)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
        "l"(&map), "r"(column), "r"(row), "r"(barrier)
        : "memory");
  }
}

// To the same place of each of the kBlocks of the cluster, whose barriers each count the bytes.
template <int kBlocks, bool kHinted>
__device__ __forceinline__ void copy_to_cluster(unsigned to, const char* from, int bytes, unsigned barrier,
                                                unsigned long long policy) {
  constexpr unsigned short kEach = (1u << kBlocks) - 1u;
  if constexpr (kBlocks > 1 && kHinted) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4, %5;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier), "h"(kEach), "l"(policy)
        : "memory");
  } else if constexpr (kBlocks > 1) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1], %2, [%3], %4;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier), "h"(kEach)
        : "memory");
  } else if constexpr (kHinted) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
            to),
        "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
        : "memory");
  } else {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
  }
}

// ---- tensor cores

// A K-major tile of 128-byte rows, 128-byte swizzle: groups of 8 rows are 1024 bytes apart.
__device__ __forceinline__ unsigned long long tile_descriptor(unsigned address) {
  return (static_cast<unsigned long long>(address & 0x3ffff) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}

// Until at most kPending products are under way.
template <int kPending>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

enum class Type { tf32, bf16, f16, e5m2 };

#define KTUNE_8(d, i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])

#define KTUNE_MULTIPLY(types, transpose)                                                                         \
  asm volatile(                                                                                                  \
      "{\n"                                                                                                      \
      ".reg .pred keep;\n"                                                                                       \
      "setp.ne.b32 keep, %69, 0;\n"                                                                              \
      "wgmma.mma_async.sync.aligned.m64n128" types                                                               \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                 \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                         \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                         \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "                        \
      "{%64, %65, %66, %67}, %68, keep, 1, 1" transpose ";\n"                                                    \
      "}\n"                                                                                                      \
      : KTUNE_8(d, 0), KTUNE_8(d, 8), KTUNE_8(d, 16), KTUNE_8(d, 24), KTUNE_8(d, 32), KTUNE_8(d, 40),            \
        KTUNE_8(d, 48), KTUNE_8(d, 56)                                                                           \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep))

// d [64 rows, 128] (+)= a [64 rows, k] b [128, k]^T over 32 bytes of k; the former d is dropped where keep is 0. Each
// product is a group of its own: with other work between them the compiler would wait for whole groups anyway.
template <Type kType>
__device__ __forceinline__ void multiply(float (&d)[64], const unsigned (&a)[4], unsigned long long b, int keep) {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  if constexpr (kType == Type::bf16) {
    KTUNE_MULTIPLY("k16.f32.bf16.bf16", ", 0");
  } else if constexpr (kType == Type::f16) {
    KTUNE_MULTIPLY("k16.f32.f16.f16", ", 0");
  } else if constexpr (kType == Type::tf32) {
    KTUNE_MULTIPLY("k8.f32.tf32.tf32", "");
  } else {
    KTUNE_MULTIPLY("k32.f32.e5m2.e5m2", "");
  }
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

#undef KTUNE_MULTIPLY
#undef KTUNE_8

}  // namespace linear
