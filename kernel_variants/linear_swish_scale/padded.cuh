// Rows that do not begin at multiples of 16 bytes, since 4 does not divide K: read number by number, or moved apart.
#pragma once

#include "swish.cuh"

namespace linear {

// Columns column .. column + 3 of a row of K numbers; those beyond K stay as they are.
__device__ __forceinline__ void load_columns(float (&to)[4], const float* row, int column, int k_size) {
  if (k_size % 4 == 0) {
    if (column < k_size) load_vector<4>(to, row + column);
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (column + i < k_size) to[i] = row[column + i];
  }
}

}  // namespace linear

// w [N, K] -> padded [N, ceil(K / 4) * 4], zeros beyond K, as TMA copies ask for rows of whole 16 bytes. One block a row.
extern "C" __global__ void __launch_bounds__(256)
pad_weight(const float* __restrict__ w, float* __restrict__ padded, int k_size) {
  const int width = (k_size + 3) / 4 * 4;
  const float* from = w + static_cast<long long>(blockIdx.x) * k_size;
  float* to = padded + static_cast<long long>(blockIdx.x) * width;
#pragma unroll 8
  for (int k = static_cast<int>(threadIdx.x); k < width; k += 256) to[k] = k < k_size ? from[k] : 0.0f;
}
