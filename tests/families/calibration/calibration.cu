// F times x -> a x + 1, then E times x -> 2^-x. Each thread has kItems neighbours, as one vector where they are 4.
__device__ __forceinline__ float work(float x, int multiply_adds, int exponentials, float a) {
  // The 1 is part of the instruction: with three registers of one bank, multiply-adds would run at half the rate.
#pragma unroll 64
  for (int i = 0; i < multiply_adds; ++i) x = fmaf(x, a, 1.0f);
#pragma unroll 64
  for (int i = 0; i < exponentials; ++i) asm volatile("{ .reg .f32 t; neg.f32 t, %0; ex2.approx.ftz.f32 %0, t; }" : "+f"(x));
  return x;
}

extern "C" __global__ void __launch_bounds__(config::kBlockSize)
calibration(const float* __restrict__ x, float* __restrict__ y, long long n, int multiply_adds, int exponentials,
            float a) {
  const long long first =
      (static_cast<long long>(blockIdx.x) * config::kBlockSize + threadIdx.x) * config::kItems;
  if (config::kItems == 4 && first + 4 <= n) {
    float4 v = *reinterpret_cast<const float4*>(x + first);
    v.x = work(v.x, multiply_adds, exponentials, a);
    v.y = work(v.y, multiply_adds, exponentials, a);
    v.z = work(v.z, multiply_adds, exponentials, a);
    v.w = work(v.w, multiply_adds, exponentials, a);
    *reinterpret_cast<float4*>(y + first) = v;
    return;
  }
  for (long long i = first; i < first + config::kItems && i < n; ++i) {
    y[i] = work(x[i], multiply_adds, exponentials, a);
  }
}
