// Kernels that each keep one unit of the GPU as busy as it gets, to learn what this GPU reaches.
//   calibrate_copy, calibrate_read   16 bytes a thread and step, over arrays far larger than L2
//   calibrate_fma                    8 independent chains of multiply-adds a thread, at full occupancy
//   calibrate_ex2                    8 independent chains of ex2 a thread, at full occupancy
//   calibrate_chain                  one chain of multiply-adds: each waits for the one before it
//   calibrate_nothing                a launch alone
// Each result is stored under a condition that never holds and that the compiler cannot know.

namespace {

constexpr int kChains = 8;
constexpr int kUnroll = 16;

// x -> 2^-x comes to rest near 0.641, so that no chain overflows.
__device__ __forceinline__ float next_ex2(float x) {
  float y;
  asm volatile("{ .reg .f32 t; neg.f32 t, %1; ex2.approx.ftz.f32 %0, t; }" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256)
calibrate_copy(const float4* __restrict__ from, float4* __restrict__ to, long long vectors) {
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  const long long first = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
#pragma unroll 4
  for (long long i = first; i < vectors; i += step) to[i] = from[i];
}

extern "C" __global__ void __launch_bounds__(256)
calibrate_read(const float4* __restrict__ from, float* __restrict__ sink, long long vectors, float never) {
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  const long long first = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  float sum = 0.0f;
#pragma unroll 4
  for (long long i = first; i < vectors; i += step) {
    const float4 v = from[i];
    sum += (v.x + v.y) + (v.z + v.w);
  }
  if (sum == never) sink[0] = sum;
}

// With a = -1 each chain goes between two values: x, b - x.
extern "C" __global__ void __launch_bounds__(256)
calibrate_fma(float* __restrict__ sink, int rounds, float a, float b, float never) {
  float x[kChains];
#pragma unroll
  for (int c = 0; c < kChains; ++c) x[c] = static_cast<float>(threadIdx.x + c);
  for (int r = 0; r < rounds; ++r) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int c = 0; c < kChains; ++c) x[c] = fmaf(x[c], a, b);
    }
  }
  float sum = 0.0f;
#pragma unroll
  for (int c = 0; c < kChains; ++c) sum += x[c];
  if (sum == never) sink[0] = sum;
}

extern "C" __global__ void __launch_bounds__(256)
calibrate_ex2(float* __restrict__ sink, int rounds, float never) {
  float x[kChains];
#pragma unroll
  for (int c = 0; c < kChains; ++c) x[c] = static_cast<float>(c) / kChains;
  for (int r = 0; r < rounds; ++r) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int c = 0; c < kChains; ++c) x[c] = next_ex2(x[c]);
    }
  }
  float sum = 0.0f;
#pragma unroll
  for (int c = 0; c < kChains; ++c) sum += x[c];
  if (sum == never) sink[0] = sum;
}

extern "C" __global__ void __launch_bounds__(32)
calibrate_chain(float* __restrict__ sink, int rounds, float a, float b, float never) {
  float x = static_cast<float>(threadIdx.x);
  for (int r = 0; r < rounds; ++r) {
#pragma unroll
    for (int u = 0; u < kChains * kUnroll; ++u) x = fmaf(x, a, b);
  }
  if (x == never) sink[0] = x;
}

extern "C" __global__ void calibrate_nothing() {}
