// y[i] = 2 x[i]. Each block walks kBlockSize * kItems consecutive elements, strided by the block.
extern "C" __global__ void __launch_bounds__(config::kBlockSize)
toy(const float* __restrict__ x, float* __restrict__ y, long long n) {
  const long long base = static_cast<long long>(blockIdx.x) * config::kBlockSize * config::kItems;
#pragma unroll config::kUnroll
  for (int item = 0; item < config::kItems; ++item) {
    const long long i = base + item * config::kBlockSize + threadIdx.x;
    if (i < n) y[i] = 2.0f * x[i];
  }
}
