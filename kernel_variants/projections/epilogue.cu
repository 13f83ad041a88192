// What follows the library's products: bias and softplus in place, or the joined product taken apart.
#include "take_apart.cuh"

// delta [rows, P] = softplus(delta + bias [P]), in place.
extern "C" __global__ void __launch_bounds__(config::kBlockSize)
softplus_in_place(float* delta, const float* __restrict__ bias, long long elements, int p_size) {
  using namespace projections;
  for_each_vector(delta, elements / kWidth, [&](long long i, float (&values)[kWidth]) {
    float biases[kWidth];
    load_vector<kWidth>(biases, bias + i * kWidth % p_size);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) values[j] = softplus(values[j] + biases[j]);
    store_vector<kWidth>(delta + i * kWidth, values);
  });
}
