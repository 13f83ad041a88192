// y = 2 x + shift, kTimes times over, in float; x and y are float or bfloat16.
#include <cuda_bf16.h>
#include <type_traits>

using Element = std::conditional_t<config::kBfloat16 == 1, __nv_bfloat16, float>;

extern "C" __global__ void __launch_bounds__(config::kBlockSize)
shifted(const Element* __restrict__ x, Element* __restrict__ y, long long n) {
  const long long i = static_cast<long long>(blockIdx.x) * config::kBlockSize + threadIdx.x;
  if (i >= n) return;
  float value = static_cast<float>(x[i]);
  for (int time = 0; time < config::kTimes; ++time) {
    value = config::kFused ? fmaf(2.0f, value, static_cast<float>(config::kShift)) : 2.0f * value + config::kShift;
  }
  y[i] = static_cast<Element>(value);
}
