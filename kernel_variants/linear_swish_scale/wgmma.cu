// Fused linear + swish + scale on Hopper's tensor cores at fp32 accuracy: y [M, N] = scale * swish(x [M, K] w [N, K]^T + b).
//
// Each operand is the sum of two bf16 numbers, hi + lo, and three of the four products are summed: lo hi + hi lo + hi hi.
// The problem is transposed, rows of w are wgmma's M and 128 rows of the batch its N, so that w is read once as fp32
// and split in registers. `split_x` splits x once, into tiles in the order and swizzle that wgmma reads. A producer
// warpgroup keeps `stages` slices of 32 columns in flight; consumer warpgroups convert the next slice while the tensor
// cores work on this one. Tensor cores truncate as they add, so every `promote_k` columns their sums move to fp32.
//
// The order of the columns inside a slice is free as long as both operands agree: product j of a slice takes columns
// 8t + 4j + {0, 1, 2, 3} into its places {2t, 2t + 1, 2t + 8, 2t + 9}, t = 0 .. 3, so that one 16-byte load of a row of
// w feeds one product. Source of the fragment layouts and descriptors: PTX ISA, section "wgmma".
#include "combine.cuh"
#include "swish.cuh"

namespace linear {

constexpr int kConsumers = config::kWarpgroups;
constexpr int kStages = config::kRing;
constexpr int kSplitK = config::kSplitK;
constexpr int kRowsPerGroup = 64;
constexpr int kTileRows = kRowsPerGroup * kConsumers;
constexpr int kBatch = 128;
constexpr int kDepth = 32;
constexpr int kRowBytes = 128;
constexpr int kWBytes = kTileRows * kRowBytes;
constexpr int kXBytes = kBatch * kRowBytes;
constexpr int kStageBytes = kWBytes + kXBytes;
constexpr int kSums = kBatch / 2;
constexpr int kPromoteSlices = config::kPromoteK / kDepth;
constexpr int kProducers = 128;
constexpr int kChunks = kRowBytes / 16;
constexpr int kThreads = kProducers + 128 * kConsumers;
constexpr int kProducerRegisters = 72;
constexpr int kConsumerRegisters = 216;

static_assert(config::kPromoteK % kDepth == 0, "sums are promoted after whole slices");
static_assert(kXBytes % 1024 == 0 && kWBytes % 1024 == 0, "swizzled tiles start at multiples of 1024 bytes");

// ---- barriers and copies

__device__ __forceinline__ unsigned shared_address(const void* at) {
  return static_cast<unsigned>(__cvta_generic_to_shared(at));
}

__device__ __forceinline__ void init_barrier(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

__device__ __forceinline__ void arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void arrive_expecting(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Arrives once all cp.async of this thread so far have landed; counts as one of the barrier's arrivals.
__device__ __forceinline__ void arrive_after_copies(unsigned barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
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

__device__ __forceinline__ void copy_bulk(unsigned to, const void* from, int bytes, unsigned barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

__device__ __forceinline__ void copy_16(unsigned to, const float* from, int valid_bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid_bytes) : "memory");
}

// ---- hi + lo

// Two floats as bf16, the first in the low half.
__device__ __forceinline__ unsigned to_bf16x2(float first, float second) {
  unsigned packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  return packed;
}

struct Pair {
  unsigned hi;
  unsigned lo;
};

__device__ __forceinline__ Pair split(float first, float second) {
  Pair pair;
  pair.hi = to_bf16x2(first, second);
  const float rest_first = first - __uint_as_float(pair.hi << 16);
  const float rest_second = second - __uint_as_float(pair.hi & 0xffff0000u);
  pair.lo = to_bf16x2(rest_first, rest_second);
  return pair;
}

// ---- tensor cores

// A K-major tile of 128-byte rows, 128-byte swizzle: groups of 8 rows are 1024 bytes apart.
__device__ __forceinline__ unsigned long long tile_descriptor(unsigned address) {
  return (static_cast<unsigned long long>(address & 0x3ffff) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}

__device__ __forceinline__ void fence_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wait_products() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

#define KTUNE_8(d, i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])

// d [64 rows, 128] (+)= a [64 rows, 16] b [128, 16]^T; the former d is dropped where keep is 0.
__device__ __forceinline__ void multiply(float (&d)[kSums], const unsigned (&a)[4], unsigned long long b, int keep) {
  asm volatile(
      "{\n"
      ".reg .pred keep;\n"
      "setp.ne.b32 keep, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, keep, 1, 1, 0;\n"
      "}\n"
      : KTUNE_8(d, 0), KTUNE_8(d, 8), KTUNE_8(d, 16), KTUNE_8(d, 24), KTUNE_8(d, 32), KTUNE_8(d, 40), KTUNE_8(d, 48),
        KTUNE_8(d, 56)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
}

#undef KTUNE_8

// One warpgroup's share of a slice of w: [product][register] of hi and lo.
struct Fragments {
  unsigned hi[2][4];
  unsigned lo[2][4];

  // w: the warpgroup's rows of the stage. Chunk c of 16 bytes of row r lies at c ^ (r % 8).
  __device__ __forceinline__ void load(const char* w, int row, int t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int r = row + 8 * half;
        const int chunk = (2 * t + j) ^ (r % 8);
        const float4 v = *reinterpret_cast<const float4*>(w + r * kRowBytes + chunk * 16);
        const Pair first = split(v.x, v.y);
        const Pair second = split(v.z, v.w);
        hi[j][half] = first.hi;
        hi[j][half + 2] = second.hi;
        lo[j][half] = first.lo;
        lo[j][half + 2] = second.lo;
      }
    }
  }

  __device__ __forceinline__ void multiply_with(float (&sums)[kSums], unsigned x_tile, int keep) const {
    const unsigned long long tile = tile_descriptor(x_tile);
    // In a row of x: hi of products 0 and 1, then lo of both, 32 bytes each; descriptors count 16 bytes.
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      multiply(sums, lo[j], tile + 2 * j, j > 0 ? 1 : keep);
      multiply(sums, hi[j], tile + 4 + 2 * j, 1);
      multiply(sums, hi[j], tile + 2 * j, 1);
    }
  }
};

struct Work {
  int n0;             // first row of w
  int m0;             // first row of the batch
  int part;           // of split K
  int first;          // first slice
  int slices;

  __device__ Work(int m_size, int n_size, int k_size) {
    const int tiles_m = (m_size + kBatch - 1) / kBatch;
    const int tiles_n = (n_size + kTileRows - 1) / kTileRows;
    const int block = static_cast<int>(blockIdx.x);
    m0 = block % tiles_m * kBatch;
    n0 = block / tiles_m % tiles_n * kTileRows;
    part = block / tiles_m / tiles_n;
    const int all = (k_size + kDepth - 1) / kDepth;
    const int per_part = (all + kSplitK - 1) / kSplitK;
    first = part * per_part;
    slices = max(0, min(per_part, all - first));
  }
};

struct Stages {
  unsigned memory;    // kStages times [x tile | w tile]
  unsigned full;      // barriers, 8 bytes each
  unsigned empty;

  __device__ __forceinline__ unsigned x(int stage) const { return memory + stage * kStageBytes; }
  __device__ __forceinline__ unsigned w(int stage) const { return x(stage) + kXBytes; }
};

// The producer warpgroup: thread i copies chunk i % 8 of rows i / 8, i / 8 + 16, ...; thread 0 also starts the copy of x.
__device__ __forceinline__ void produce(const Stages& stages, const Work& work, const char* x_tiles, const float* w,
                                        int n_size, int k_size) {
  constexpr int kRowsPerPass = kProducers / kChunks;
  constexpr int kPasses = kTileRows / kRowsPerPass;
  const int thread = static_cast<int>(threadIdx.x);
  const int chunk = thread % kChunks;
  const int row = thread / kChunks;
  const int all_slices = (k_size + kDepth - 1) / kDepth;
  const char* x_from = x_tiles + (static_cast<long long>(work.m0 / kBatch) * all_slices + work.first) * kXBytes;
  // Rows of one pass differ from the next by a multiple of 8, so all of a thread's chunks are swizzled alike.
  const unsigned to = row * kRowBytes + ((chunk ^ (row % 8)) * 16);
  int column = work.first * kDepth + chunk * 4;
  const float* from[kPasses];
  bool exists[kPasses];
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const int n = work.n0 + row + pass * kRowsPerPass;
    exists[pass] = n < n_size;
    from[pass] = w + static_cast<long long>(exists[pass] ? n : 0) * k_size + column;
  }
  int stage = 0;
  int phase = 1;
  for (int i = 0; i < work.slices; ++i) {
    const unsigned full = stages.full + 8 * stage;
    wait(stages.empty + 8 * stage, phase);
    if (thread == 0) {
      arrive_expecting(full, kXBytes);
      copy_bulk(stages.x(stage), x_from + static_cast<long long>(i) * kXBytes, kXBytes, full);
    }
    const bool in_depth = column < k_size;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const bool valid = in_depth && exists[pass];
      copy_16(stages.w(stage) + to + pass * kRowsPerPass * kRowBytes, valid ? from[pass] : w, valid ? 16 : 0);
      from[pass] += kDepth;
    }
    arrive_after_copies(full);
    column += kDepth;
    stage = stage + 1 == kStages ? 0 : stage + 1;
    phase ^= stage == 0 ? 1 : 0;
  }
}

// One slice: its products start, the next slice is converted meanwhile, then the stage is given back.
__device__ __forceinline__ void consume_slice(const Stages& stages, const char* w_rows, const Fragments& now,
                                              Fragments& next, float (&sums)[kSums], float (&totals)[kSums], int i,
                                              int slices, int row, int t) {
  const int stage = i % kStages;
  fence_products();
  now.multiply_with(sums, stages.x(stage), i % kPromoteSlices == 0 ? 0 : 1);
  commit_products();
  if (i + 1 < slices) {
    const int following = (i + 1) % kStages;
    wait(stages.full + 8 * following, (i + 1) / kStages & 1);
    next.load(w_rows + following * kStageBytes, row, t);
  }
  wait_products();
  if (threadIdx.x % 32 == 0) arrive(stages.empty + 8 * stage);
  if ((i + 1) % kPromoteSlices == 0 || i + 1 == slices) {
#pragma unroll
    for (int s = 0; s < kSums; ++s) totals[s] += sums[s];
  }
}

}  // namespace linear

// x [M, K] fp32 -> tiles [ceil(M / 128), ceil(K / 32), 128 rows, 128 bytes], see the order of columns above; zeros
// beyond M and K. One thread makes 8 columns of a row.
extern "C" __global__ void __launch_bounds__(256)
split_x(const float* __restrict__ x, unsigned* __restrict__ tiles, int m_size, int k_size) {
  using namespace linear;
  const int slices = (k_size + kDepth - 1) / kDepth;
  const long long thread = static_cast<long long>(blockIdx.x) * 256 + threadIdx.x;
  const int t = static_cast<int>(thread % 4);
  const int slice = static_cast<int>(thread / 4 % slices);
  const long long row = thread / 4 / slices;
  if (row >= (m_size + kBatch - 1) / kBatch * kBatch) return;
  float v[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int column = slice * kDepth + 8 * t + i;
    v[i] = row < m_size && column < k_size ? x[row * k_size + column] : 0.0f;
  }
  unsigned* to = tiles + ((row / kBatch * slices + slice) * kBatch + row % kBatch) * (kRowBytes / 4);
  const int swizzle = static_cast<int>(row % 8);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const Pair made = split(v[4 * j + 2 * pair], v[4 * j + 2 * pair + 1]);
      to[((2 * j + pair) ^ swizzle) * 4 + t] = made.hi;
      to[((4 + 2 * j + pair) ^ swizzle) * 4 + t] = made.lo;
    }
  }
}

extern "C" __global__ void __launch_bounds__(linear::kThreads, 1)
wgmma(const char* __restrict__ x_tiles, const float* __restrict__ w, const float* __restrict__ bias,
      float* __restrict__ out, int m_size, int n_size, int k_size, float scale) {
  using namespace linear;
  extern __shared__ char shared[];
  // Swizzled tiles need multiples of 1024 bytes; the launch asks for 1024 more than the stages take.
  char* memory = shared + (-shared_address(shared) & 1023);
  const unsigned base = shared_address(memory);
  const Stages stages{base, base + kStages * kStageBytes, base + kStages * kStageBytes + 8 * kStages};
  const Work work(m_size, n_size, k_size);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      init_barrier(stages.full + 8 * i, kProducers + 1);
      init_barrier(stages.empty + 8 * i, 4 * kConsumers);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();

  if (threadIdx.x < kProducers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kProducerRegisters));
    produce(stages, work, x_tiles, w, n_size, k_size);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kConsumerRegisters));
    const int group = static_cast<int>(threadIdx.x) / 128 - 1;
    const int warp = static_cast<int>(threadIdx.x) % 128 / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row = warp * 16 + lane / 4;
    const int t = lane % 4;
    const char* w_rows = memory + kXBytes + group * kRowsPerGroup * kRowBytes;
    float sums[kSums];
    float totals[kSums];
#pragma unroll
    for (int s = 0; s < kSums; ++s) sums[s] = totals[s] = 0.0f;
    Fragments even, odd;
    if (work.slices > 0) {
      wait(stages.full, 0);
      even.load(w_rows, row, t);
    }
    for (int i = 0; i < work.slices; i += 2) {
      consume_slice(stages, w_rows, even, odd, sums, totals, i, work.slices, row, t);
      if (i + 1 < work.slices) consume_slice(stages, w_rows, odd, even, sums, totals, i + 1, work.slices, row, t);
    }
    // totals[4 i + e] is row (e / 2) * 8 of w and column 8 i + 2 t + e % 2 of the batch.
    float* to = out + (kSplitK > 1 ? static_cast<long long>(work.part) * m_size * n_size : 0);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int n = work.n0 + group * kRowsPerGroup + row + 8 * half;
      if (n >= n_size) continue;
      const float b = kSplitK > 1 ? 0.0f : bias[n];
#pragma unroll
      for (int s = 0; s < kSums / 2; ++s) {
        const int m = work.m0 + s / 2 * 8 + 2 * t + s % 2;
        if (m >= m_size) continue;
        const float sum = totals[s / 2 * 4 + 2 * half + s % 2];
        to[static_cast<long long>(m) * n_size + n] = kSplitK > 1 ? sum : swish_scaled(sum + b, scale);
      }
    }
  }
}
