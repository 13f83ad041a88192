// What every selective-scan kernel of this family shares: how threads map to (batch, channel) pairs
// and states, one time step of the recurrence, and the sum of a pair's states over its threads.
//
//   h[n] <- exp(delta A[n]) h[n] + delta x B[n];   y = sum_n h[n] C[n] + x skip
//
// Source: Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces" (2023), algorithm 2.
#pragma once

namespace scan {

constexpr int kN = static_cast<int>(config::kN);
constexpr int kBlockSize = config::kBlockSize;
constexpr int kThreadsPerPair = config::kThreadsPerPair;
constexpr int kStatesPerThread = (kN + kThreadsPerPair - 1) / kThreadsPerPair;
constexpr int kPaddedN = kStatesPerThread * kThreadsPerPair;
constexpr int kPairsPerWarp = 32 / kThreadsPerPair;
constexpr int kPairsPerBlock = kBlockSize / kThreadsPerPair;
// Time steps whose partial sums are reduced together.
constexpr int kGroup = config::kReduction == config::Reduction::shuffle ? 1 : kThreadsPerPair;
constexpr unsigned kFullMask = 0xffffffffu;
constexpr float kLog2E = 1.44269504088896341f;

static_assert(kBlockSize % 32 == 0, "a block is whole warps, so that every lane takes part in the shuffles");
static_assert(32 % kThreadsPerPair == 0, "a pair's threads lie in one warp");
static_assert(kN >= 1, "at least one state");

// Lane j * kPairsPerWarp + c of a warp holds states [j, j + 1) * kStatesPerThread of pair c. Neighbouring
// lanes are neighbouring channels: rows of x, delta and y are read and written in whole sectors.
struct Place {
  int part;       // which states of the pair
  int pair;       // which pair of the block
  bool first;     // holds the pair's first states

  __device__ Place() {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    part = lane / kPairsPerWarp;
    pair = static_cast<int>(threadIdx.x) / 32 * kPairsPerWarp + lane % kPairsPerWarp;
    first = part == 0;
  }
};

// exp(delta a); `a` was scaled by scale_of_a() once, outside the loop over time.
__device__ __forceinline__ float decay(float delta, float a) {
  if constexpr (config::kExp == config::Exp::ex2) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(delta * a));
    return result;
  } else if constexpr (config::kExp == config::Exp::exp2f) {
    return exp2f(delta * a);
  } else {
    return expf(delta * a);
  }
}

__device__ __forceinline__ constexpr float scale_of_a() {
  return config::kExp == config::Exp::expf ? 1.0f : kLog2E;
}

// One time step's inputs, as far as this thread needs them.
struct Step {
  float delta;
  float x;
  float b[kStatesPerThread];
  float c[kStatesPerThread];
};

// Floats of shared memory that the reduction of one warp needs.
constexpr int kReductionFloatsPerWarp =
    config::kReduction == config::Reduction::shared && kThreadsPerPair > 1
        ? 2 * kThreadsPerPair * (32 + kPairsPerWarp)
        : 0;

// Sums kGroup steps' partials over the pair's threads. Afterwards the thread of part j holds the total of
// step j (kGroup > 1), or every thread holds the total (kGroup == 1).
struct Reducer {
  float* buffer;   // this warp's, two halves used in turn: one barrier a group suffices
  int half = 0;

  __device__ float total(float (&partial)[kGroup], const Place& place) {
    if constexpr (kThreadsPerPair == 1) {
      return partial[0];
    } else if constexpr (config::kReduction == config::Reduction::shuffle) {
      return butterfly(partial[0]);
    } else if constexpr (config::kReduction == config::Reduction::transposed) {
      return transposed<kGroup / 2>(partial, place);
    } else {
      return through_shared(partial, place);
    }
  }

  static __device__ __forceinline__ float butterfly(float sum) {
#pragma unroll
    for (int distance = kPairsPerWarp; distance < 32; distance *= 2) {
      sum += __shfl_xor_sync(kFullMask, sum, distance);
    }
    return sum;
  }

  // Each exchange halves the steps that a thread still holds: kGroup - 1 shuffles for kGroup steps.
  template <int kWidth>
  static __device__ __forceinline__ float transposed(float* partial, const Place& place) {
    if constexpr (kWidth == 0) {
      return partial[0];
    } else {
      const bool upper = (place.part & kWidth) != 0;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float low = partial[i];
        const float high = partial[i + kWidth];
        const float received = __shfl_xor_sync(kFullMask, upper ? low : high, kWidth * kPairsPerWarp);
        partial[i] = (upper ? high : low) + received;
      }
      return transposed<kWidth / 2>(partial, place);
    }
  }

  // Rows are padded by kPairsPerWarp floats: writes (fixed step) and reads (fixed part) hit 32 banks.
  __device__ __forceinline__ float through_shared(float (&partial)[kGroup], const Place& place) {
    constexpr int kRow = 32 + kPairsPerWarp;
    float* rows = buffer + half * kThreadsPerPair * kRow;
    half ^= 1;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int pair = lane % kPairsPerWarp;
#pragma unroll
    for (int step = 0; step < kGroup; ++step) {
      rows[place.part * kRow + step * kPairsPerWarp + pair] = partial[step];
    }
    __syncwarp();
    float sum = 0.0f;
#pragma unroll
    for (int part = 0; part < kThreadsPerPair; ++part) {
      sum += rows[part * kRow + lane];
    }
    return sum;
  }
};

// Which step of a group this thread writes, if any.
__device__ __forceinline__ int owned_step(const Place& place) { return kGroup == 1 ? 0 : place.part; }
__device__ __forceinline__ bool owns_a_step(const Place& place) { return kGroup > 1 || place.first; }

// kCount floats with the widest access that divides both kCount and kWidest.
template <int kCount, int kWidest>
__device__ __forceinline__ void load_floats(float (&to)[kCount], const float* from) {
  if constexpr (kCount % 4 == 0 && kWidest % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      const float4 v = *reinterpret_cast<const float4*>(from + i);
      to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
    }
  } else if constexpr (kCount % 2 == 0 && kWidest % 2 == 0) {
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      const float2 v = *reinterpret_cast<const float2*>(from + i);
      to[i] = v.x, to[i + 1] = v.y;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = from[i];
  }
}

// Starts the copy of kBytes, 4, 8 or 16, into shared memory; unless `valid`, zeros arrive and `from` is not read.
template <int kBytes>
__device__ __forceinline__ void copy_or_clear(void* to, const void* from, bool valid) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  const int bytes = valid ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(from), "n"(kBytes), "r"(bytes)
                 : "memory");
  }
}

// Copies that are under way are counted in groups: commit_copies ends one, wait_copies waits for all but the last few.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace scan
