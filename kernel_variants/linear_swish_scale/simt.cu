// Fused linear + swish + scale in CUDA cores, fp32: y [M, N] = scale * swish(x [M, K] w [N, K]^T + bias [N]).
//
// A block computes kBm x kBn outputs, a thread kTm x kTn of them in registers. Slices of kBk columns of x and w go
// through registers into shared memory, transposed to [k, row], `stages` slices deep: the next slice is loaded
// while this one is multiplied. With split_k > 1 the blocks of one tile share K and leave partial sums, which
// `combine` adds in a fixed order before the epilogue.
#include "combine.cuh"
#include "swish.cuh"

namespace linear {

constexpr int kBm = config::kBm;
constexpr int kBn = config::kBn;
constexpr int kBk = config::kBk;
constexpr int kTm = config::kTm;
constexpr int kTn = config::kTn;
constexpr int kStages = config::kStages;
constexpr int kSplitK = config::kSplitK;
constexpr int kWidth = config::kVectorWidth;
constexpr int kThreads = (kBm / kTm) * (kBn / kTn);
// A warp covers 4 x 8 threads: its loads of either operand are 64 and 128 contiguous bytes.
constexpr int kLanesM = 4;
constexpr int kLanesN = 8;
constexpr int kWarpsN = kBn / kTn / kLanesN;
// Padding keeps rows 16-byte aligned and spreads the transposing stores over the banks.
constexpr int kPad = 4;
constexpr int kRowM = kBm + kPad;
constexpr int kRowN = kBn + kPad;

static_assert(kBm % (kTm * kLanesM) == 0 && kBn % (kTn * kLanesN) == 0, "a tile is whole warps of 4 x 8 threads");
static_assert(kThreads % 32 == 0 && kThreads <= 1024, "a block is 1 to 32 whole warps");
static_assert(kTm % 4 == 0 && kTn % 4 == 0, "fragments are read as float4");
static_assert(kBk % kWidth == 0, "a vector load stays within a slice");

// kRows rows of a slice, held in registers on their way to shared memory.
template <int kRows, int kRowFloats>
struct Slice {
  static constexpr int kVectorsPerRow = kBk / kWidth;
  static constexpr int kVectors = kRows * kVectorsPerRow;
  static constexpr int kPerThread = (kVectors + kThreads - 1) / kThreads;
  float held[kPerThread][kWidth];

  // from: the operand at its first row of the block; rows and depth beyond which there is nothing: zeros.
  __device__ __forceinline__ void load(const float* from, long long k_size, int rows, long long k, long long k_end) {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int vector = i * kThreads + static_cast<int>(threadIdx.x);
      const int row = vector / kVectorsPerRow;
      const long long column = k + vector % kVectorsPerRow * kWidth;
      if (row < rows && column < k_end && (kVectors % kThreads == 0 || vector < kVectors)) {
        load_vector<kWidth>(held[i], from + row * k_size + column);
      } else {
#pragma unroll
        for (int j = 0; j < kWidth; ++j) held[i][j] = 0.0f;
      }
    }
  }

  __device__ __forceinline__ void store(float* to) const {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int vector = i * kThreads + static_cast<int>(threadIdx.x);
      if (kVectors % kThreads != 0 && vector >= kVectors) break;
      const int row = vector / kVectorsPerRow;
      const int column = vector % kVectorsPerRow * kWidth;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) to[(column + j) * kRowFloats + row] = held[i][j];
    }
  }
};

// Chunk c of a fragment starts at `lane * 4` within the c-th part of a row, so that a warp's float4 reads touch.
template <int kCount, int kTile>
__device__ __forceinline__ void load_fragment(float (&to)[kCount], const float* row, int thread) {
  constexpr int kChunks = kCount / 4;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const float4 v = *reinterpret_cast<const float4*>(row + c * (kTile / kChunks) + thread * 4);
    to[4 * c] = v.x, to[4 * c + 1] = v.y, to[4 * c + 2] = v.z, to[4 * c + 3] = v.w;
  }
}

template <int kCount, int kTile>
__device__ __forceinline__ int fragment_row(int i, int thread) {
  return i / 4 * (kTile / (kCount / 4)) + thread * 4 + i % 4;
}

__device__ __forceinline__ void multiply(float (&sums)[kTm][kTn], const float* xs, const float* ws, int tm, int tn) {
#pragma unroll config::kUnroll
  for (int k = 0; k < kBk; ++k) {
    float a[kTm], b[kTn];
    load_fragment<kTm, kBm>(a, xs + k * kRowM, tm);
    load_fragment<kTn, kBn>(b, ws + k * kRowN, tn);
#pragma unroll
    for (int i = 0; i < kTm; ++i) {
#pragma unroll
      for (int j = 0; j < kTn; ++j) sums[i][j] = fmaf(a[i], b[j], sums[i][j]);
    }
  }
}

}  // namespace linear

extern "C" __global__ void __launch_bounds__(linear::kThreads)
simt(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ bias, float* __restrict__ out,
     int m_size, int n_size, int k_size, float scale) {
  using namespace linear;
  extern __shared__ __align__(16) float shared[];
  constexpr int kStageFloats = kBk * (kRowM + kRowN);
  const int tiles_m = (m_size + kBm - 1) / kBm;
  const int tiles_n = (n_size + kBn - 1) / kBn;
  // Neighbouring blocks are rows of tiles that read the same part of w.
  const int tile_m = static_cast<int>(blockIdx.x) % tiles_m;
  const int tile_n = static_cast<int>(blockIdx.x) / tiles_m % tiles_n;
  const int part = static_cast<int>(blockIdx.x) / tiles_m / tiles_n;
  const int m0 = tile_m * kBm;
  const int n0 = tile_n * kBn;
  // Parts of K are whole slices, the last one shorter.
  const long long slices = (static_cast<long long>(k_size) + kBk - 1) / kBk;
  const long long per_part = (slices + kSplitK - 1) / kSplitK * kBk;
  const long long k_begin = part * per_part;
  const long long k_end = min(static_cast<long long>(k_size), k_begin + per_part);

  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int tm = warp / kWarpsN * kLanesM + lane / kLanesN;
  const int tn = warp % kWarpsN * kLanesN + lane % kLanesN;
  const float* x_rows = x + static_cast<long long>(m0) * k_size;
  const float* w_rows = w + static_cast<long long>(n0) * k_size;

  Slice<kBm, kRowM> x_slice;
  Slice<kBn, kRowN> w_slice;
  float sums[kTm][kTn] = {};
  if (k_begin < k_end) {
    x_slice.load(x_rows, k_size, m_size - m0, k_begin, k_end);
    w_slice.load(w_rows, k_size, n_size - n0, k_begin, k_end);
    x_slice.store(shared);
    w_slice.store(shared + kBk * kRowM);
    __syncthreads();
  }
  int stage = 0;
  for (long long k = k_begin; k < k_end; k += kBk) {
    const bool more = k + kBk < k_end;
    if (more) {
      x_slice.load(x_rows, k_size, m_size - m0, k + kBk, k_end);
      w_slice.load(w_rows, k_size, n_size - n0, k + kBk, k_end);
    }
    const float* now = shared + stage * kStageFloats;
    multiply(sums, now, now + kBk * kRowM, tm, tn);
    if (more) {
      if constexpr (kStages == 1) __syncthreads();  // everyone has read the only stage
      stage = kStages == 1 ? 0 : stage ^ 1;
      x_slice.store(shared + stage * kStageFloats);
      w_slice.store(shared + stage * kStageFloats + kBk * kRowM);
      __syncthreads();
    }
  }

  float* to = out + (kSplitK > 1 ? static_cast<long long>(part) * m_size * n_size : 0);
#pragma unroll
  for (int i = 0; i < kTm; ++i) {
    const int m = m0 + fragment_row<kTm, kBm>(i, tm);
    if (m >= m_size) continue;
#pragma unroll
    for (int j = 0; j < kTn; j += 4) {
      const int n = n0 + fragment_row<kTn, kBn>(j, tn);
      float values[4];
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        const float sum = sums[i][j + v];
        values[v] = kSplitK > 1 || n + v >= n_size ? sum : swish_scaled(sum + bias[n + v], scale);
      }
      float* at = to + static_cast<long long>(m) * n_size + n;
      if (n_size % 4 == 0 && n + 4 <= n_size) {
        store_vector<4>(at, values);
      } else {
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          if (n + v < n_size) at[v] = values[v];
        }
      }
    }
  }
}
