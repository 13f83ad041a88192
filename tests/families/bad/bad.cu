// y[i] = 2 x[i] + 1, one thread an element; then what config::kBehaviour says. The faults sit where a
// bounds check, a flag or an index would be wrong in a real kernel.
using config::Behaviour;
using config::kBehaviour;

static_assert(kBehaviour != Behaviour::does_not_compile, "planted: this variant does not compile");

// No thread sets it: whoever waits for it waits for ever.
__device__ volatile int arrived;
__device__ int launches;

// Verification launches fewer times than this, timing more often.
constexpr int kRightLaunches = 12;

extern "C" __global__ void __launch_bounds__(config::kBlockSize)
bad(float* x, float* y, long long n) {
  const long long i = static_cast<long long>(blockIdx.x) * config::kBlockSize + threadIdx.x;
  if constexpr (kBehaviour == Behaviour::endless_loop) {
    while (arrived == 0) {
    }
  }
  if constexpr (kBehaviour == Behaviour::illegal_address) {
    *reinterpret_cast<volatile float*>(8) = 1.0f;
  }
  if (i >= n) return;
  float value = 2.0f * x[i] + 1.0f;
  if constexpr (kBehaviour == Behaviour::all_nan) value = __int_as_float(0x7fffffff);
  if constexpr (kBehaviour == Behaviour::last_nan) value = i == n - 1 ? __int_as_float(0x7fffffff) : value;
  if constexpr (kBehaviour == Behaviour::zeros) value = 0.0f;
  if constexpr (kBehaviour == Behaviour::sometimes_right) {
    if (i == 0 && atomicAdd(&launches, 1) >= kRightLaunches) value += 1.0f;
  }
  if constexpr (kBehaviour != Behaviour::writes_nothing) y[i] = value;
  if constexpr (kBehaviour == Behaviour::writes_past_end) {
    if (i == 0) y[n] = value;
  }
  if constexpr (kBehaviour == Behaviour::writes_before) {
    if (i == 0) y[-1] = value;
  }
  if constexpr (kBehaviour == Behaviour::changes_input) {
    if (i == 0) x[0] = value;
  }
}
