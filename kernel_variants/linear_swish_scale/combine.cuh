// The last step of split K, shared by the kernels that offer it.
#pragma once

#include "swish.cuh"

// y = scale * swish(sum of parts + bias); parts [split_k, M, N], added in order.
extern "C" __global__ void __launch_bounds__(256)
combine(const float* __restrict__ parts, const float* __restrict__ bias, float* __restrict__ y, long long elements,
        int n_size, float scale) {
  const long long i = static_cast<long long>(blockIdx.x) * 256 + threadIdx.x;
  if (i >= elements) return;
  float z = bias[i % n_size];
#pragma unroll
  for (int part = 0; part < config::kSplitK; ++part) z += parts[part * elements + i];
  y[i] = linear::swish_scaled(z, scale);
}
