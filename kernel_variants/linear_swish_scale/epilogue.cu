// Bias, swish and scale over a finished product, in place: y [rows, columns], bias [columns].
//
// Each block walks kItems vectors per thread, a block's width apart, so that a warp's accesses are contiguous and
// kItems loads are in flight. A vector lies in one row: kVectorWidth divides the number of columns.
#include "swish.cuh"

extern "C" __global__ void __launch_bounds__(config::kBlockSize)
epilogue(float* __restrict__ y, const float* __restrict__ bias, long long elements, int columns, float scale) {
  using namespace linear;
  constexpr int kWidth = config::kVectorWidth;
  constexpr int kItems = config::kItems;
  const long long vectors = elements / kWidth;
  const long long first = static_cast<long long>(blockIdx.x) * config::kBlockSize * kItems + threadIdx.x;
  float z[kItems][kWidth];
#pragma unroll
  for (int item = 0; item < kItems; ++item) {
    const long long i = first + item * config::kBlockSize;
    if (i < vectors) load_vector<kWidth>(z[item], y + i * kWidth);
  }
#pragma unroll
  for (int item = 0; item < kItems; ++item) {
    const long long i = first + item * config::kBlockSize;
    if (i >= vectors) break;
    float b[kWidth];
    load_vector<kWidth>(b, bias + i * kWidth % columns);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) z[item][j] = swish_scaled(z[item][j] + b[j], scale);
    store_vector<kWidth>(y + i * kWidth, z[item]);
  }
}
