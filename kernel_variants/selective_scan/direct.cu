// Selective scan, sequential in time, every thread loading its own inputs.
//
// One thread holds N / threads_per_pair states of one (batch, channel) pair in registers. Inputs come straight from
// global memory; `prefetch` steps are loaded together, one batch ahead of the batch that is computed, so that
// their latency overlaps the arithmetic. prefetch = 0 loads each step where it is used.
// Layout: x, delta, y [batch, length, channels]; b, c [batch, length, N]; a [channels, N]; skip [channels].
#include "scan.cuh"

namespace scan {

constexpr int kBatch = config::kPrefetch > 0 ? config::kPrefetch : kGroup;
static_assert(kBatch % kGroup == 0, "a batch of steps holds whole groups of the reduction");

struct Source {
  const float* x;
  const float* delta;
  const float* b;
  const float* c;
  long long channels;
  int part;
  bool in_range;

  // Step `t` of the sequence; beyond its end a step with delta = x = 0, which changes nothing.
  __device__ __forceinline__ void load(Step& step, int t, int length) const {
    constexpr int kWidth = config::kVectorWidth;
    if (t < length && in_range) {
      step.delta = __ldg(delta + t * channels);
      step.x = __ldg(x + t * channels);
    } else {
      step.delta = 0.0f;
      step.x = 0.0f;
    }
    const long long row = static_cast<long long>(t) * kN;
    if (t < length && kPaddedN == kN) {
      load_floats<kStatesPerThread, kWidth>(step.b, b + row);
      load_floats<kStatesPerThread, kWidth>(step.c, c + row);
    } else {
#pragma unroll
      for (int i = 0; i < kStatesPerThread; ++i) {
        const bool valid = t < length && part * kStatesPerThread + i < kN;
        step.b[i] = valid ? __ldg(b + row + i) : 0.0f;
        step.c[i] = valid ? __ldg(c + row + i) : 0.0f;
      }
    }
  }
};

struct Sink {
  float* y;
  long long channels;
  bool writes;
  int step;

  __device__ __forceinline__ void store(float total, int t, int length) const {
    if (writes && t + step < length) y[(t + step) * channels] = total;
  }
};

__device__ __forceinline__ void load_batch(Step (&steps)[kBatch], const Source& source, int t, int length) {
#pragma unroll
  for (int i = 0; i < kBatch; ++i) source.load(steps[i], t + i, length);
}

__device__ __forceinline__ void run_batch(Step (&steps)[kBatch], States& states, Reducer& reducer, const Sink& sink,
                                          const Place& place, int t, int length) {
#pragma unroll
  for (int group = 0; group < kBatch; group += kGroup) {
    float partial[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) partial[i] = states.advance(steps[group + i]);
    sink.store(reducer.total(partial, place), t + group, length);
  }
}

}  // namespace scan

extern "C" __global__ void __launch_bounds__(config::kBlockSize)
selective_scan_direct(const float* __restrict__ x, const float* __restrict__ delta, const float* __restrict__ a,
                      const float* __restrict__ b, const float* __restrict__ c, const float* __restrict__ skip,
                      float* __restrict__ y, int length, int channels_given) {
  using namespace scan;
  extern __shared__ float shared[];
  const int channels = config::kD > 0 ? static_cast<int>(config::kD) : channels_given;
  const int blocks_per_batch = (channels + kPairsPerBlock - 1) / kPairsPerBlock;
  const int batch = static_cast<int>(blockIdx.x) / blocks_per_batch;
  const Place place;
  const int channel = static_cast<int>(blockIdx.x) % blocks_per_batch * kPairsPerBlock + place.pair;
  const bool in_range = channel < channels;

  const long long rows = static_cast<long long>(batch) * length;
  const long long offset = rows * channels + (in_range ? channel : 0);
  const long long state = rows * kN + place.part * kStatesPerThread;
  const Source source{x + offset, delta + offset, b + state, c + state, channels, place.part, in_range};
  const Sink sink{y + offset, channels, in_range && owns_a_step(place), owned_step(place)};
  States states(a, skip, channel, channels, place);
  Reducer reducer{shared + threadIdx.x / 32 * kReductionFloatsPerWarp};

  Step steps[kBatch];
  if constexpr (config::kPrefetch > 0) load_batch(steps, source, 0, length);
#pragma unroll config::kUnroll
  for (int t = 0; t < length; t += kBatch) {
    if constexpr (config::kPrefetch > 0) {
      Step next[kBatch];
      load_batch(next, source, t + kBatch, length);
      run_batch(steps, states, reducer, sink, place, t, length);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) steps[i] = next[i];
    } else {
      load_batch(steps, source, t, length);
      run_batch(steps, states, reducer, sink, place, t, length);
    }
  }
}
