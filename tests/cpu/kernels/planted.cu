// One planted bug a kernel, on a line that a comment names; test_planted_bugs.py looks for the report of each.
constexpr unsigned kAll = 0xffffffffu;

extern "C" __global__ void divergent_shuffle(float* y) {
  float value = threadIdx.x;
  if (threadIdx.x % 4 == 1) value += __shfl_xor_sync(kAll, value, 1);  // divergent shuffle
  __syncthreads();
  y[threadIdx.x] = value;
}

extern "C" __global__ void shuffle_in_two_branches(float* y) {
  float value = threadIdx.x;
  if (threadIdx.x < 16) {
    value += __shfl_xor_sync(kAll, value, 1);  // first branch
  } else {
    value -= __shfl_xor_sync(kAll, value, 1);  // second branch
  }
  y[threadIdx.x] = value;
}

extern "C" __global__ void divergent_barrier(float* y) {
  if (threadIdx.x < 32) {
    __syncthreads();  // barrier of the first warp
    y[threadIdx.x] = 1.0f;
  } else {
    __syncthreads();  // barrier of the others
    y[threadIdx.x] = 2.0f;
  }
}

extern "C" __global__ void barrier_in_a_loop(float* y) {
  for (unsigned i = 0; i < threadIdx.x % 2 + 1; ++i) __syncthreads();
  __shfl_xor_sync(kAll, 1.0f, 1);  // after the loop
  y[threadIdx.x] = 1.0f;
}

extern "C" __global__ void wrong_mask(float* y) {
  y[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, 1.0f, 1);  // wrong mask
}

extern "C" __global__ void lane_outside_of_the_mask(float* y) {
  if (threadIdx.x < 16) y[threadIdx.x] = __shfl_down_sync(0x0000ffffu, 1.0f, 8);
}

extern "C" __global__ void bad_width(float* y) {
  y[threadIdx.x] = __shfl_xor_sync(kAll, 1.0f, 1, 12);  // bad width
}

extern "C" __global__ void missing_barrier(const float* x, float* y) {
  __shared__ float row[64];
  row[threadIdx.x] = x[threadIdx.x];  // row is written
  y[threadIdx.x] = row[63 - threadIdx.x];  // row is read
}

// The values are right whatever the order; the race is one all the same.
extern "C" __global__ void missing_barrier_unseen(float* y) {
  __shared__ float one;
  one = 1.0f;  // one is written
  y[threadIdx.x] = 1.0f;
}

extern "C" __global__ void missing_barrier_after_reading(const float* x, float* y) {
  __shared__ float row[64];
  for (int round = 0; round < 2; ++round) {
    row[threadIdx.x] = x[threadIdx.x];  // row is written again
    __syncthreads();
    y[threadIdx.x] = row[63 - threadIdx.x];
  }
}

extern "C" __global__ void missing_syncwarp(const float* x, float* y) {
  __shared__ float row[32];
  row[threadIdx.x] = x[threadIdx.x];  // lane's own
  const float sum = __shfl_xor_sync(kAll, x[threadIdx.x], 1);
  y[threadIdx.x] = row[31 - threadIdx.x] + 0.0f * sum;  // other lane's
}

extern "C" __global__ void left_before_the_barrier(float* y) {
  __shared__ float row[64];
  row[threadIdx.x] = 1.0f;
  if (threadIdx.x >= 32) return;
  __syncthreads();
  y[threadIdx.x] = row[threadIdx.x + 32];  // not ordered
}

// The first warp hands a row to the second through barrier 1, and goes on without waiting.
__device__ void arrive_at_1() { asm volatile("bar.arrive 1, 64;" ::: "memory"); }
__device__ void wait_at_1() { asm volatile("bar.sync 1, 64;" ::: "memory"); }

extern "C" __global__ void handed_over(const float* x, float* y) {
  __shared__ float row[32];
  if (threadIdx.x < 32) {
    row[threadIdx.x] = x[threadIdx.x];
    arrive_at_1();
  } else {
    wait_at_1();
    y[threadIdx.x] = row[63 - threadIdx.x];
  }
}

extern "C" __global__ void never_handed_over(const float* x, float* y) {
  __shared__ float row[32];
  if (threadIdx.x < 32) {
    row[threadIdx.x] = x[threadIdx.x];
  } else {
    asm volatile("bar.sync 1, 64;" ::: "memory");  // nobody arrives
    y[threadIdx.x] = row[63 - threadIdx.x];
  }
}

extern "C" __global__ void written_after_arriving(const float* x, float* y) {
  __shared__ float row[32];
  if (threadIdx.x < 32) {
    arrive_at_1();
    row[threadIdx.x] = x[threadIdx.x];  // row is handed over late
  } else {
    wait_at_1();
    y[threadIdx.x] = row[63 - threadIdx.x];  // row is taken
  }
}

// Those that only arrive learn nothing of what the others did before the barrier.
extern "C" __global__ void read_after_arriving(const float* x, float* y) {
  __shared__ float row[32];
  if (threadIdx.x < 32) {
    arrive_at_1();
    y[threadIdx.x] = row[threadIdx.x];  // row is read unasked
  } else {
    row[threadIdx.x - 32] = x[threadIdx.x];  // row is written by those that wait
    wait_at_1();
  }
}

extern "C" __global__ void handed_over_through_another(const float* x, float* y) {
  __shared__ float row[32];
  if (threadIdx.x < 32) {
    row[threadIdx.x] = x[threadIdx.x];  // row is for barrier 1
    arrive_at_1();
    asm volatile("bar.sync 2, 64;" ::: "memory");
  } else {
    asm volatile("bar.arrive 2, 64;" ::: "memory");
    y[threadIdx.x] = row[63 - threadIdx.x];  // row is taken at barrier 2
    wait_at_1();
  }
}

extern "C" __global__ void blocks_share_an_output(float* y) {
  y[threadIdx.x] = 1.0f;  // every block writes it
}

extern "C" __global__ void reads_past_the_end(const float* x, float* y) {
  y[threadIdx.x] = x[threadIdx.x + 1];  // x is read
}

extern "C" __global__ void writes_past_the_end(float* y) {
  y[threadIdx.x + 1] = 1.0f;  // y is written
}

extern "C" __global__ void writes_before_the_start(float* y) {
  y[static_cast<int>(threadIdx.x) - 1] = 1.0f;  // y is written before
}

extern "C" __global__ void static_shared_overrun(float* y) {
  __shared__ float row[32];
  float* mine = row + threadIdx.x;
  mine[1] = 1.0f;  // row is overrun
  y[threadIdx.x] = 1.0f;
}

extern "C" __global__ void dynamic_shared_overrun(float* y) {
  extern __shared__ float row[];
  y[threadIdx.x] = row[threadIdx.x + 1];  // dynamic is overrun
}

extern "C" __global__ void register_array_overrun(float* y, int index) {
  float values[4] = {1.0f, 2.0f, 3.0f, 4.0f};
  y[threadIdx.x] = values[index];  // values is overrun
}

extern "C" __global__ void misaligned_vector(float* y) {
  *reinterpret_cast<float4*>(y + 1) = make_float4(1.0f, 2.0f, 3.0f, 4.0f);  // misaligned
}

extern "C" __global__ void unwritten_output(float* y) {
  if (threadIdx.x > 0) y[threadIdx.x] = 1.0f;
}

extern "C" __global__ void uninitialised_sum(float* y) {
  float sum;
  for (int i = 0; i < 4; ++i) sum += 1.0f;
  y[threadIdx.x] = sum;
}

extern "C" __global__ void uninitialised_shared(float* y) {
  __shared__ float row[32];
  y[threadIdx.x] = row[threadIdx.x];
}

extern "C" __global__ void copy_without_wait(const float* x, float* y) {
  __shared__ float stage[32];
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(&stage[threadIdx.x]));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(x + threadIdx.x));
  asm volatile("cp.async.commit_group;");
  __syncthreads();
  y[threadIdx.x] = stage[threadIdx.x];
}

extern "C" __global__ void copy_past_the_end(const float* x, float* y) {
  __shared__ float stage[32];
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(&stage[threadIdx.x]));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(x + threadIdx.x + 1));  // x is copied
  asm volatile("cp.async.wait_all;");
  y[threadIdx.x] = stage[threadIdx.x];
}

extern "C" __global__ void wild_address(float* y) {
  *reinterpret_cast<volatile float*>(8) = 1.0f;
  y[0] = 1.0f;
}

extern "C" __global__ void divides_by_zero(float* y, int zero) { y[0] = static_cast<float>(7 / zero); }

extern "C" __global__ void endless(float* y) {
  while (*reinterpret_cast<volatile float*>(y) != 1.0f) {
  }
}

__device__ float depth(float* y, int n) {
  float frame[256];
  for (int i = 0; i < 256; ++i) frame[i] = y[0] + i;
  return n == 0 ? frame[3] : frame[n % 256] + depth(y, n - 1);
}

extern "C" __global__ void deep(float* y) { y[0] = depth(y, 10000); }

extern "C" __global__ void asserts(float* y) {
  assert(threadIdx.x < 5);  // assertion
  y[threadIdx.x] = 1.0f;
}

extern "C" __global__ void tensor_cores(float* y, int reached) {
  if (reached) asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  y[threadIdx.x] = 1.0f;
}
