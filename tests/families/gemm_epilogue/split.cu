// K is cut into kSplits parts. `partial_products` writes partials[s, m, n], the product over part s;
// `combine` adds them in a fixed order: y = relu(sum_s partials + bias), row_sum[m] = sum_n y[m, n].
#include "rows.cuh"

extern "C" __global__ void __launch_bounds__(config::kTile * config::kTile)
partial_products(const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ partials,
                 int m, int n, int k) {
  constexpr int kTile = config::kTile;
  __shared__ float x_tile[kTile][kTile + 1];
  __shared__ float weight_tile[kTile][kTile + 1];
  const int row = blockIdx.y * kTile + threadIdx.y;
  const int column = blockIdx.x * kTile + threadIdx.x;
  const int weight_row = blockIdx.x * kTile + threadIdx.y;
  const int length = (k + config::kSplits - 1) / config::kSplits;
  const int begin = blockIdx.z * length;
  const int end = min(begin + length, k);
  float sum = 0.0f;
  for (int base = begin; base < end; base += kTile) {
    const int at = base + threadIdx.x;
    x_tile[threadIdx.y][threadIdx.x] = row < m && at < end ? x[static_cast<long long>(row) * k + at] : 0.0f;
    weight_tile[threadIdx.y][threadIdx.x] =
        weight_row < n && at < end ? weight[static_cast<long long>(weight_row) * k + at] : 0.0f;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTile; ++i) sum += x_tile[threadIdx.y][i] * weight_tile[threadIdx.x][i];
    __syncthreads();
  }
  if (row < m && column < n) {
    partials[(static_cast<long long>(blockIdx.z) * m + row) * n + column] = sum;
  }
}

extern "C" __global__ void __launch_bounds__(config::kBlockSize)
combine(const float* __restrict__ partials, const float* __restrict__ bias, float* __restrict__ y,
        float* __restrict__ row_sum, int m, int n) {
  const long long offset = static_cast<long long>(blockIdx.x) * n;
  float sum = 0.0f;
  for (int column = threadIdx.x; column < n; column += config::kBlockSize) {
    float value = bias[column];
#pragma unroll
    for (int split = 0; split < config::kSplits; ++split) {
      value += partials[static_cast<long long>(split) * m * n + offset + column];
    }
    value = fmaxf(value, 0.0f);
    y[offset + column] = value;
    sum += value;
  }
  const float total = block_sum<config::kBlockSize>(sum);
  if (threadIdx.x == 0) row_sum[blockIdx.x] = total;
}
