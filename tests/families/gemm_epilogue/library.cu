// y[m, n] = relu(z[m, n] + bias[n]) and row_sum[m] = sum_n y[m, n], for z from a library GEMM.
// One block a row. Rows are read kVectorWidth floats at a time where the row length allows it.
#include "rows.cuh"

template <int kWidth>
struct alignas(kWidth * sizeof(float)) Vector {
  float values[kWidth];
};

template <int kWidth>
__device__ float row(const float* __restrict__ z, const float* __restrict__ bias, float* __restrict__ y, int n) {
  using Packed = Vector<kWidth>;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < n / kWidth; i += config::kBlockSize) {
    Packed in = reinterpret_cast<const Packed*>(z)[i];
    const Packed shift = reinterpret_cast<const Packed*>(bias)[i];
#pragma unroll
    for (int lane = 0; lane < kWidth; ++lane) {
      in.values[lane] = fmaxf(in.values[lane] + shift.values[lane], 0.0f);
      sum += in.values[lane];
    }
    reinterpret_cast<Packed*>(y)[i] = in;
  }
  return sum;
}

extern "C" __global__ void __launch_bounds__(config::kBlockSize)
epilogue(const float* __restrict__ z, const float* __restrict__ bias, float* __restrict__ y,
         float* __restrict__ row_sum, int n) {
  const long long offset = static_cast<long long>(blockIdx.x) * n;
  const float sum = n % config::kVectorWidth == 0 ? row<config::kVectorWidth>(z + offset, bias, y + offset, n)
                                                  : row<1>(z + offset, bias, y + offset, n);
  const float total = block_sum<config::kBlockSize>(sum);
  if (threadIdx.x == 0) row_sum[blockIdx.x] = total;
}
