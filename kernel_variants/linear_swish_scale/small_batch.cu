// Fused linear + swish + scale for small batches, bound by reading w once: y [M, N], x [M, K], w [N, K], bias [N].
//
// `warps_per_row` warps share kRowsPerWarp rows of w and all of the batch, kBatch rows of x at a time: each lane reads
// vectors of w once, kUnroll of them in flight, and multiplies them with the same vectors of x, which stay in
// cache. Lanes add up by shuffles, the warps of a row through shared memory in a fixed order.
#include "swish.cuh"

namespace linear {

constexpr int kBatch = config::kBatchTile;
constexpr int kRows = config::kRowsPerWarp;
constexpr int kWidth = config::kVectorWidth;
constexpr int kUnroll = config::kUnroll;
constexpr int kWarps = config::kBlockSize / 32;
constexpr int kWarpsPerRow = config::kWarpsPerRow;
constexpr int kGroups = kWarps / kWarpsPerRow;

static_assert(kWarps % kWarpsPerRow == 0, "the warps of a row are in one block");

struct Sums {
  float of[kRows][kBatch];

  // One step: kUnroll vectors of each row of w per lane. A row or column out of range adds nothing.
  template <bool kGuarded>
  __device__ __forceinline__ void add(const float* w, const float* x, long long k_size, long long k, int rows,
                                      int batch) {
    float wv[kUnroll][kRows][kWidth];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const long long column = k + u * 32 * kWidth;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (!kGuarded || (r < rows && column < k_size)) {
          load_vector<kWidth>(wv[u][r], w + r * k_size + column);
        } else {
#pragma unroll
          for (int j = 0; j < kWidth; ++j) wv[u][r][j] = 0.0f;
        }
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const long long column = k + u * 32 * kWidth;
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        float xv[kWidth] = {};
        if (!kGuarded || (b < batch && column < k_size)) load_vector<kWidth>(xv, x + b * k_size + column);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int j = 0; j < kWidth; ++j) of[r][b] = fmaf(wv[u][r][j], xv[j], of[r][b]);
        }
      }
    }
  }
};

}  // namespace linear

extern "C" __global__ void __launch_bounds__(config::kBlockSize)
small_batch(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ bias,
            float* __restrict__ y, int m_size, int n_size, int k_size, float scale) {
  using namespace linear;
  __shared__ float partial[kWarps][kRows][kBatch];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int share = warp % kWarpsPerRow;
  const int tiles_m = (m_size + kBatch - 1) / kBatch;
  const int m0 = static_cast<int>(blockIdx.x) % tiles_m * kBatch;
  const int n0 = (static_cast<int>(blockIdx.x) / tiles_m * kGroups + warp / kWarpsPerRow) * kRows;
  const int rows = min(kRows, n_size - n0);
  const int batch = min(kBatch, m_size - m0);

  Sums sums = {};
  if (rows > 0) {
    const float* w_rows = w + static_cast<long long>(n0) * k_size;
    const float* x_rows = x + static_cast<long long>(m0) * k_size;
    constexpr long long kStep = 32LL * kWidth * kUnroll;
    for (long long base = share * kStep; base < k_size; base += kWarpsPerRow * kStep) {
      const long long k = base + lane * kWidth;
      if (base + kStep <= k_size && rows == kRows && batch == kBatch) {
        sums.add<false>(w_rows, x_rows, k_size, k, rows, batch);
      } else {
        sums.add<true>(w_rows, x_rows, k_size, k, rows, batch);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      float sum = sums.of[r][b];
#pragma unroll
      for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
      if (lane == 0) partial[warp][r][b] = sum;
    }
  }
  __syncthreads();
  if (share != 0) return;
  for (int i = lane; i < kRows * kBatch; i += 32) {
    const int r = i % kRows;
    const int b = i / kRows;
    if (r >= rows || b >= batch) continue;
    float z = bias[n0 + r];
#pragma unroll
    for (int s = 0; s < kWarpsPerRow; ++s) z += partial[warp + s][r][b];
    y[static_cast<long long>(m0 + b) * n_size + n0 + r] = swish_scaled(z, scale);
  }
}
