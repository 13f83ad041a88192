// The joined product [rows, P + 2 S] taken apart into the three outputs.
//
// Each block walks kItems vectors per thread, a block's width apart, so that a warp's accesses are contiguous and
// kItems loads are in flight. A vector lies in one row of one output: kVectorWidth divides P and S.
#pragma once

#include "softplus.cuh"

namespace projections {

constexpr int kWidth = config::kVectorWidth;
constexpr int kItems = config::kItems;

// The block's i-th vectors of `vectors`; finish(vector, its floats).
template <typename Finish>
__device__ __forceinline__ void for_each_vector(const float* from, long long vectors, Finish finish) {
  const long long first = static_cast<long long>(blockIdx.x) * config::kBlockSize * kItems + threadIdx.x;
  float values[kItems][kWidth];
#pragma unroll
  for (int item = 0; item < kItems; ++item) {
    const long long i = first + item * config::kBlockSize;
    if (i < vectors) load_vector<kWidth>(values[item], from + i * kWidth);
  }
#pragma unroll
  for (int item = 0; item < kItems; ++item) {
    const long long i = first + item * config::kBlockSize;
    if (i < vectors) finish(i, values[item]);
  }
}

}  // namespace projections

// z [rows, P + 2 S] to delta = softplus(z + bias), b and c.
extern "C" __global__ void __launch_bounds__(config::kBlockSize)
take_apart(const float* __restrict__ z, const float* __restrict__ bias, float* __restrict__ delta, float* __restrict__ b,
           float* __restrict__ c, long long elements, int p_size, int s_size) {
  using namespace projections;
  const Outputs outputs{delta, b, c, p_size, s_size};
  const int columns = p_size + 2 * s_size;
  for_each_vector(z, elements / kWidth, [&](long long i, float (&values)[kWidth]) {
    const long long row = i * kWidth / columns;
    const int column = static_cast<int>(i * kWidth % columns);
    float biases[kWidth] = {};
    if (column < p_size) load_vector<kWidth>(biases, bias + column);
    outputs.store(row, column, values, biases);
  });
}
