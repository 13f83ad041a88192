// Fused linear + swish + scale on Hopper's tensor cores at fp32 accuracy: y [M, N] = scale * swish(x [M, K] w [N, K]^T + b).
//
// Each operand is split into numbers of fewer bits, see operands.cuh, and all products but the smallest are summed.
// The problem is transposed, rows of w are wgmma's M and 128 rows of the batch its N, so that w is read once as fp32
// and split in registers. `split_x` splits x once, into tiles in the order and swizzle that wgmma reads; `wgmma` starts
// before it ends. One thread keeps `ring` slices of 32 columns in flight by bulk copies; the blocks of a cluster work
// on neighbouring rows of w, and each copies its share of a tile of x to all of them. Consumer warpgroups split the
// next slice between the products of this one. Tensor cores truncate as they add, so every `promote_k` columns their
// sums move to fp32.
//
// The order of the columns inside a slice is free as long as both operands agree: product j of a slice takes columns
// 8t + 4j + {0, 1, 2, 3} into its places {2t, 2t + 1, 2t + 8, 2t + 9}, t = 0 .. 3, so that one 16-byte load of a row of
// w feeds one product. Of tf32 it feeds two: product p takes columns 8t + 2p + {0, 1} into its places {t, t + 4}.
// Source of the fragment layouts and descriptors: PTX ISA, section "wgmma".
#include "combine.cuh"
#include "operands.cuh"
#include "padded.cuh"
#include "swish.cuh"

namespace linear {

constexpr int kConsumers = config::kWarpgroups;
constexpr int kStages = config::kRing;
constexpr int kSplitK = config::kSplitK;
constexpr int kCluster = config::kCluster;
constexpr int kRowsPerGroup = 64;
constexpr int kTileRows = kRowsPerGroup * kConsumers;
constexpr int kBatch = 128;
constexpr int kDepth = 32;
constexpr int kRowBytes = 128;
constexpr int kWBytes = kTileRows * kRowBytes;
constexpr int kXBytes = kXTiles * kBatch * kRowBytes;
constexpr int kXShare = kXBytes / kCluster;
constexpr int kStageBytes = kWBytes + kXBytes;
constexpr bool kTight = kFp16x3;    // of registers: loads one at a time, and nothing kept that can be had again
constexpr int kPromoteSlices = config::kPromoteK / kDepth;
// setmaxnreg is for whole warpgroups, so the producing thread has one to itself.
constexpr int kThreads = 128 + 128 * kConsumers;
constexpr int kProducerRegisters = 24;
constexpr int kConsumerRegisters = 240;

static_assert(config::kPromoteK % kDepth == 0, "sums are promoted after whole slices");
static_assert(kXBytes % 1024 == 0 && kWBytes % 1024 == 0, "swizzled tiles start at multiples of 1024 bytes");
static_assert(kXShare % 16 == 0 && kCluster <= 4, "blocks copy equal shares of a tile of x to at most 4");

// A consuming thread's sums are of this row and of the one 8 further on, of its warpgroup's 64.
__device__ __forceinline__ int row_of(int thread) { return thread % 128 / 32 * 16 + thread % 32 / 4; }

// threadIdx.x, read anew so that no register holds it meanwhile.
__device__ __forceinline__ int thread_again() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

struct Work {
  int n0;             // first row of w; beyond N for the block that fills up the last cluster
  int m0;             // first row of the batch
  int part;           // of split K
  int first;          // first slice
  int slices;

  __device__ Work(int m_size, int n_size, int k_size) {
    const int tiles_m = (m_size + kBatch - 1) / kBatch;
    const int clusters_n = (n_size + kTileRows * kCluster - 1) / (kTileRows * kCluster);
    const int cluster = static_cast<int>(blockIdx.x) / kCluster;
    m0 = cluster % tiles_m * kBatch;
    n0 = (cluster / tiles_m % clusters_n * kCluster + static_cast<int>(blockIdx.x) % kCluster) * kTileRows;
    part = cluster / tiles_m / clusters_n;
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

// A place in the ring, and how often it has been there, modulo 2.
struct Turn {
  int stage = 0;
  int phase = 0;

  __device__ __forceinline__ void next() {
    stage = stage + 1 == kStages ? 0 : stage + 1;
    phase ^= stage == 0 ? 1 : 0;
  }
};

struct Producer {
  const Stages& stages;
  const Work& work;
  const TensorMap& w_map;
  const char* x_share;    // of the first slice
  unsigned long long w_policy;
  unsigned long long x_policy;

  __device__ Producer(const Stages& stages, const Work& work, const TensorMap& w_map, const char* x_tiles, int k_size)
      : stages(stages), work(work), w_map(w_map), w_policy(evict_first()), x_policy(evict_last()) {
    const int all_slices = (k_size + kDepth - 1) / kDepth;
    const int rank = static_cast<int>(blockIdx.x) % kCluster;
    x_share = x_tiles + (static_cast<long long>(work.m0 / kBatch) * all_slices + work.first) * kXBytes + rank * kXShare;
  }

  __device__ __forceinline__ void copy_w(int slice, int stage) const {
    const unsigned full = stages.full + 8 * stage;
    arrive_expecting(full, kStageBytes);
    copy_box<config::kHints>(stages.w(stage), w_map, (work.first + slice) * kDepth, work.n0, full, w_policy);
  }

  __device__ __forceinline__ void copy_x(int slice, int stage) const {
    const int rank = static_cast<int>(blockIdx.x) % kCluster;
    copy_to_cluster<kCluster, config::kHints>(stages.x(stage) + rank * kXShare,
                                              x_share + static_cast<long long>(slice) * kXBytes, kXShare,
                                              stages.full + 8 * stage, x_policy);
  }

  __device__ __forceinline__ void run() const {
    // The first slices of w need not wait for split_x.
    const int early = min(kStages, work.slices);
    for (int i = 0; i < early; ++i) copy_w(i, i);
    wait_for_predecessor();
    for (int i = 0; i < early; ++i) copy_x(i, i);
    Turn turn;
#pragma unroll 1
    for (int i = kStages; i < work.slices; ++i) {
      wait(stages.empty + 8 * turn.stage, turn.phase);
      copy_w(i, turn.stage);
      copy_x(i, turn.stage);
      turn.next();
    }
  }
};

struct Consumer {
  const Stages& stages;
  const char* w_rows;    // the lane's row in the first stage
  int slices;
  int chunk;             // of the lane's first 16 bytes; its others are in chunk ^ 1 and 8 rows further on

  __device__ __forceinline__ float4 load(int stage, int half, int j) const {
    return *reinterpret_cast<const float4*>(w_rows + stage * kStageBytes + half * 8 * kRowBytes + (chunk ^ j) * 16);
  }

  // Each block of the cluster copies into this stage of all of them, so each must know that it is free.
  __device__ __forceinline__ void release(int stage) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const unsigned empty = stages.empty + 8 * stage;
    if constexpr (kCluster > 1) {
      if (lane < kCluster) arrive_at(empty, lane);
    } else {
      if (lane == 0) arrive(empty);
    }
  }

  // One slice. Its products come in two halves; the registers that `next` overwrites belong to the slice before, whose
  // first half has ended when this begins, and whose second has ended at the wait between the halves.
  __device__ __forceinline__ void consume(const Fragments& now, Fragments& next, Sums& sums, int i, int before,
                                          int stage, const Turn& following) const {
    const unsigned long long tile = tile_descriptor(stages.x(stage));
    const int keep = i % kPromoteSlices == 0 ? 0 : 1;
    const int s = following.stage;
    if constexpr (!kE5m2) {
      now.multiply_with<0, kThird>(sums, tile, keep);
      if (i + 1 < slices) wait(stages.full + 8 * s, following.phase);
      const float4 a = load(s, 0, 0), b = kTight ? a : load(s, 1, 0);
      now.multiply_with<kThird, kHalf - kThird>(sums, tile, keep);
      next.put(0, 0, a);
      now.multiply_with<kHalf - kThird, kHalf>(sums, tile, keep);
      next.put(1, 0, kTight ? load(s, 1, 0) : b);
      const float4 c = load(s, 0, 1), d = kTight ? c : load(s, 1, 1);
      wait_products<kHalf>();
      if (i > 0) release(before);
      now.multiply_with<kHalf, kHalf + kThird>(sums, tile, 1);
      next.put(0, 1, c);
      now.multiply_with<kHalf + kThird, 2 * kHalf - kThird>(sums, tile, 1);
      next.put(1, 1, kTight ? load(s, 1, 1) : d);
      now.multiply_with<2 * kHalf - kThird, 2 * kHalf>(sums, tile, 1);
    } else {
      now.multiply_with<0, kHalf>(sums, tile, keep);
      wait_products<kHalf>();
      if (i > 0) release(before);
      if (i + 1 < slices) wait(stages.full + 8 * s, following.phase);
      next.put(0, 0, load(s, 0, 0));
      next.put(1, 0, load(s, 1, 0));
      now.multiply_with<2, 3>(sums, tile, 1);
      next.put(0, 1, load(s, 0, 1));
      next.put(1, 1, load(s, 1, 1));
      now.multiply_with<3, 4>(sums, tile, 1);
    }
    if ((i + 1) % kPromoteSlices == 0 || i + 1 == slices) {
      wait_products<0>();
      sums.promote();
    } else {
      wait_products<kHalf>();
    }
  }

  __device__ __forceinline__ void run(Sums& sums) const {
    sums.clear();
    if (slices == 0) return;
    Fragments even, odd;
    wait(stages.full, 0);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      even.put(0, j, load(0, 0, j));
      even.put(1, j, load(0, 1, j));
    }
    Turn turn;
    int before = 0;
    for (int i = 0; i < slices; i += 2) {
      int stage = turn.stage;
      turn.next();
      consume(even, odd, sums, i, before, stage, turn);
      if (i + 1 == slices) break;
      before = stage, stage = turn.stage;
      turn.next();
      consume(odd, even, sums, i + 1, before, stage, turn);
      before = stage;
    }
    // They have ended, but the compiler does not see it and would put a wait where threads may part.
    wait_products<0>();
  }
};

}  // namespace linear

// x [M, K] fp32 -> tiles [ceil(M / 128), ceil(K / 32), kXTiles, 128 rows, 128 bytes], see the order of columns above;
// zeros beyond M and K. One thread makes 8 columns of a row.
extern "C" __global__ void __launch_bounds__(256)
split_x(const float* __restrict__ x, unsigned* __restrict__ tiles, int m_size, int k_size) {
  using namespace linear;
  let_dependents_start();
  const int slices = (k_size + kDepth - 1) / kDepth;
  const long long thread = static_cast<long long>(blockIdx.x) * 256 + threadIdx.x;
  const int t = static_cast<int>(thread % 4);
  const int slice = static_cast<int>(thread / 4 % slices);
  const long long row = thread / 4 / slices;
  if (row >= (m_size + kBatch - 1) / kBatch * kBatch) return;
  unsigned* to = tiles + ((row / kBatch * slices + slice) * kXTiles * kBatch + row % kBatch) * (kRowBytes / 4);
  const int swizzle = static_cast<int>(row % 8);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int column = slice * kDepth + 8 * t + 4 * j;
    float v[4] = {};
    if (row < m_size) load_columns(v, x + row * k_size, column, k_size);
    const Parts parts = split_infinite(v);
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      to[(chunk_offset(high_chunk(j, word)) ^ swizzle) * 4 + t] = parts.high[word];
      if constexpr (kRest) to[(chunk_offset(low_chunk(j, word)) ^ swizzle) * 4 + t] = parts.low[word];
    }
  }
}

extern "C" __global__ void __launch_bounds__(linear::kThreads, 1)
wgmma(const char* __restrict__ x_tiles, const __grid_constant__ linear::TensorMap w_map, const float* __restrict__ bias,
      float* __restrict__ out, int m_size, int n_size, int k_size, float scale) {
  using namespace linear;
  extern __shared__ char shared[];
  // Swizzled tiles need multiples of 1024 bytes; the launch asks for 1024 more than the stages take.
  char* memory = shared + (-shared_address(shared) & 1023);
  const unsigned base = shared_address(memory);
  const Stages stages{base, base + kStages * kStageBytes, base + kStages * kStageBytes + 8 * kStages};
  const Work work(m_size, n_size, k_size);
  if (threadIdx.x == 0) {
    prefetch_map(w_map);
    for (int i = 0; i < kStages; ++i) {
      init_barrier(stages.full + 8 * i, 1);
      init_barrier(stages.empty + 8 * i, 4 * kConsumers * kCluster);
    }
    publish_barriers();
  }
  __syncthreads();
  if constexpr (kCluster > 1) {
    arrive_in_cluster<false>();
    wait_for_cluster();
  }

  if (threadIdx.x < 128) {
    if constexpr (kConsumers > 1) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kProducerRegisters));
    if (threadIdx.x == 0) Producer(stages, work, w_map, x_tiles, k_size).run();
    if constexpr (kCluster > 1) arrive_in_cluster<true>();
  } else {
    if constexpr (kConsumers > 1) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kConsumerRegisters));
    int group = static_cast<int>(threadIdx.x) / 128 - 1;
    int row = row_of(static_cast<int>(threadIdx.x));
    int t = static_cast<int>(threadIdx.x) % 32 % 4;
    Sums sums;
    Consumer{stages, memory + kXBytes + (group * kRowsPerGroup + row) * kRowBytes, work.slices, (2 * t) ^ (row % 8)}.run(
        sums);
    if constexpr (kCluster > 1) arrive_in_cluster<true>();
    // Sum 4 i + e is row (e / 2) * 8 of w and column 8 i + 2 t + e % 2 of the batch.
    if constexpr (kTight) {
      const int thread = thread_again();
      group = thread / 128 - 1, row = row_of(thread), t = thread % 4;
    }
    float* to = out + (kSplitK > 1 ? static_cast<long long>(work.part) * m_size * n_size : 0);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int n = work.n0 + group * kRowsPerGroup + row + 8 * half;
      if (n >= n_size) continue;
      const float b = kSplitK > 1 ? 0.0f : bias[n];
#pragma unroll
      for (int s = 0; s < 32; ++s) {
        const int m = work.m0 + s / 2 * 8 + 2 * t + s % 2;
        if (m >= m_size) continue;
        const float sum = sums.result(s / 2 * 4 + 2 * half + s % 2);
        to[static_cast<long long>(m) * n_size + n] = kSplitK > 1 ? sum : swish_scaled(sum + b, scale);
      }
    }
  }
  // A block's barriers and tiles are the others' until they have ended too.
  if constexpr (kCluster > 1) wait_for_cluster();
}
