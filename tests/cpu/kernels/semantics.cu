// One kernel for each part of CUDA's execution model; test_cuda_semantics.py knows what each must give.
#include <cuda_runtime.h>

#include <cstdint>

template <class T>
__device__ __forceinline__ T twice(T x) { return x + x; }

constexpr unsigned kAll = 0xffffffffu;

// out [4, 32]: lane's value 100 + lane by each kind of shuffle, argument and width as given.
extern "C" __global__ void __launch_bounds__(32) shuffles(int* out, int argument, int width) {
  const int lane = static_cast<int>(threadIdx.x);
  const int value = 100 + lane;
  out[lane] = __shfl_sync(kAll, value, argument, width);
  out[32 + lane] = __shfl_up_sync(kAll, value, argument, width);
  out[64 + lane] = __shfl_down_sync(kAll, value, argument, width);
  out[96 + lane] = __shfl_xor_sync(kAll, value, argument, width);
}

// Two halves of a warp in different places, each with its own mask; 8-byte values.
extern "C" __global__ void halves(double* out) {
  const unsigned lane = threadIdx.x;
  const unsigned mask = lane < 16 ? 0x0000ffffu : 0xffff0000u;
  double value = lane;
  if (lane < 16) {
    value += __shfl_xor_sync(mask, value, 1);
  } else {
    value *= __shfl_xor_sync(mask, value, 2);
  }
  out[lane] = value;
}

extern "C" __global__ void votes(unsigned* out) {
  const int lane = static_cast<int>(threadIdx.x);
  const unsigned odd = __ballot_sync(kAll, lane % 2);
  const unsigned any = __any_sync(kAll, lane == 31), none = __any_sync(kAll, lane > 31);
  const unsigned all = __all_sync(kAll, lane < 32), some = __all_sync(kAll, lane < 31);
  const unsigned equal = __match_any_sync(kAll, lane / 8);
  const unsigned values[] = {odd, any, none, all, some, equal, static_cast<unsigned>(__popc(odd))};
  for (int i = 0; i < 7; ++i) out[i * 32 + lane] = values[i];
}

extern "C" __global__ void block_votes(int* out) {
  const int i = static_cast<int>(threadIdx.x);
  const int count = __syncthreads_count(i % 3 == 0);
  const int all = __syncthreads_and(i < 1000), notall = __syncthreads_and(i > 0);
  const int any = __syncthreads_or(i == 5), none = __syncthreads_or(i > 1000);
  if (i == 0) out[0] = count, out[1] = all, out[2] = notall, out[3] = any, out[4] = none;
}

// Each block reverses its slice through dynamic and through static shared memory, and counts in a third array.
extern "C" __global__ void reverse(const float* x, float* y, int* counts) {
  extern __shared__ __align__(16) float dynamic[];
  __shared__ float fixed[2][48];
  __shared__ alignas(16) int count;
  const unsigned i = threadIdx.x, base = blockIdx.x * blockDim.x;
  if (i == 0) count = 0;
  dynamic[i] = x[base + i];
  fixed[1][i] = 10.0f * x[base + i];
  __syncthreads();
  y[2 * (base + i)] = dynamic[blockDim.x - 1 - i];
  y[2 * (base + i) + 1] = fixed[1][blockDim.x - 1 - i];
  atomicAdd(&count, 1);
  __syncthreads();
  if (i == 0) counts[blockIdx.x] = count;
}

// out [blocks, threads, 6]: where each thread is, in three dimensions.
extern "C" __global__ void places(unsigned* out) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  unsigned* at = out + (block * blockDim.x * blockDim.y * blockDim.z + thread) * 6;
  at[0] = blockIdx.x, at[1] = blockIdx.y, at[2] = blockIdx.z;
  at[3] = threadIdx.x, at[4] = threadIdx.y, at[5] = threadIdx.z;
}

extern "C" __global__ void arguments(const float* __restrict__ x, double* out, int a, unsigned b, long long c,
                                     unsigned long long d, float e) {
  out[0] = a, out[1] = b, out[2] = static_cast<double>(c), out[3] = static_cast<double>(d), out[4] = e;
  const float4 v = *reinterpret_cast<const float4*>(x);
  const float2 w = make_float2(v.w, v.z);
  out[5] = v.x + 10.0f * v.y + 100.0f * w.y + 1000.0f * w.x;
  out[6] = static_cast<double>(min(c, a) + max(2, 3)) + fminf(twice(1.0f), 5.0f);
}

// Intrinsics and inline PTX: each line's value is known.
extern "C" __global__ void arithmetic(float* out) {
  float power, sum;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(3.0f));
  asm volatile("fma.rn.f32 %0, %1, %2, %3;" : "=f"(sum) : "f"(2.0f), "f"(5.0f), "f"(1.0f));
  unsigned lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  const float values[] = {
      power, sum, static_cast<float>(lane), __expf(0.0f), exp2f(4.0f), rsqrtf(16.0f), __fdividef(1.0f, 4.0f),
      __int_as_float(0x40490fdb), static_cast<float>(__float_as_int(1.0f) >> 23), static_cast<float>(__clz(1)),
      static_cast<float>(__ffs(8)), __ldg(out + 31), __saturatef(7.0f), static_cast<float>(__float2int_rn(2.5f)),
      static_cast<float>(__brev(1u) >> 31), static_cast<float>(__umulhi(0x80000000u, 6u))};
  for (int i = 0; i < 16; ++i) out[i] = values[i];
}

// Each thread's copies arrive in groups; sum [threads] of the two groups that were waited for.
extern "C" __global__ void copies(const float* x, float* y) {
  __shared__ float stage[3][32];
  const unsigned i = threadIdx.x;
  for (int group = 0; group < 3; ++group) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(&stage[group][i]));
    const int valid = group == 1 && i % 2 == 1 ? 0 : 4;
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(x + group * 32 + i), "n"(4), "r"(valid)
                 : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  asm volatile("cp.async.wait_group %0;\n" ::"n"(1));
  y[i] = stage[0][i] + stage[1][i];
  asm volatile("cp.async.wait_all;");
  y[32 + i] = stage[2][i];
}

// Half of the block waits at a barrier of its own, twice; the other half does not.
extern "C" __global__ void named_barriers(int* out) {
  __shared__ int passed[64];
  const int i = static_cast<int>(threadIdx.x);
  passed[i] = i;
  if (i < 64) {
    asm volatile("bar.sync 1, 64;" ::: "memory");
    out[i] = passed[63 - i];
    asm volatile("bar.sync %0, %1;" ::"r"(1), "r"(64) : "memory");
  }
}

// The last block to finish adds up what the others left: an order made by an atomic.
extern "C" __global__ void last_block(float* parts, int* arrived, float* total) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    parts[blockIdx.x] = 1.0f + blockIdx.x;
    __threadfence();
    last = atomicAdd(arrived, 1) == static_cast<int>(gridDim.x) - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    float sum = 0.0f;
    for (unsigned i = 0; i < gridDim.x; ++i) sum += parts[i];
    *total = sum;
  }
}

// 24 of 32 threads leave early; barriers and shuffles wait for no thread that has left.
extern "C" __global__ void early_exit(int* out) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= 8) return;
  __syncthreads();
  out[i] = __shfl_xor_sync(kAll, i, 1);
}

// Each float to bfloat16 and back, alone and in a pair; then products that round to bfloat16.
extern "C" __global__ void brain_floats(const float* x, __nv_bfloat16* one, __nv_bfloat162* pair, __nv_bfloat16* product,
                                        float* wide) {
  const int i = threadIdx.x;
  one[i] = __float2bfloat16(x[i]);
  if (i % 2 == 0) pair[i / 2] = __floats2bfloat162_rn(x[i], x[i + 1]);
  product[i] = one[i] * one[i] + one[i];
  wide[i] = __bfloat162float(__ushort_as_bfloat16(__bfloat16_as_ushort(one[i])));
}
