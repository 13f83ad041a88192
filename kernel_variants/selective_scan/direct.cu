// Selective scan, sequential in time, every thread loading its own inputs.
//
// One thread holds N / threads_per_pair states of one (batch, channel) pair in registers. Inputs come straight from
// global memory; `prefetch` steps are loaded together, one batch ahead of the batch that is computed, so that
// their latency overlaps the arithmetic. prefetch = 0 loads each step where it is used.
// Layout: x, delta, z, y [batch, length, channels]; b, c [batch, length, groups, N]; a [channels, N]; skip, bias
// [channels]; states [batch, channels, N].
#include "options.cuh"

namespace scan {

constexpr int kBatch = config::kPrefetch > 0 ? config::kPrefetch : kGroup;
static_assert(kBatch % kGroup == 0, "a batch of steps holds whole groups of the reduction");

struct Source {
  const Element* x;
  const Element* delta;
  const Element* b;
  const Element* c;
  long long channels;
  int part;
  bool in_range;
  float bias;

  // Step `t` of the sequence; beyond its end a step with delta = x = 0, which changes nothing.
  __device__ __forceinline__ void load(Step& step, int t, int length) const {
    constexpr int kWidth = config::kVectorWidth;
    if (t < length && in_range) {
      step.delta = step_size(load_global(delta + t * channels), bias);
      step.x = load_global(x + t * channels);
    } else {
      step.delta = 0.0f;
      step.x = 0.0f;
    }
    const long long row = static_cast<long long>(t) * (kGroups * kN);
    if (t < length && kPaddedN == kN) {
      load_floats<kStatesPerThread, kWidth>(step.b, b + row);
      load_floats<kStatesPerThread, kWidth>(step.c, c + row);
    } else {
#pragma unroll
      for (int i = 0; i < kStatesPerThread; ++i) {
        const bool valid = t < length && part * kStatesPerThread + i < kN;
        step.b[i] = valid ? load_global(b + row + i) : 0.0f;
        step.c[i] = valid ? load_global(c + row + i) : 0.0f;
      }
    }
  }
};

struct Sink {
  Element* y;
  const Element* z;
  long long channels;
  bool writes;
  int step;

  __device__ __forceinline__ float load_gate(int t, int length) const {
    return config::kGate && writes && t + step < length ? load_global(z + (t + step) * channels) : 0.0f;
  }

  __device__ __forceinline__ void store(float total, float gate, int t, int length) const {
    if (writes && t + step < length) y[(t + step) * channels] = gated(total, gate);
  }
};

// Steps that are loaded together, and what gates the step of each group that this thread writes.
struct Batch {
  Step steps[kBatch];
  float gates[kBatch / kGroup];

  __device__ __forceinline__ void load(const Source& source, const Sink& sink, int t, int length) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) source.load(steps[i], t + i, length);
#pragma unroll
    for (int i = 0; i < kBatch / kGroup; ++i) gates[i] = sink.load_gate(t + i * kGroup, length);
  }

  __device__ __forceinline__ void run(CarriedStates& states, Reducer& reducer, const Sink& sink, const Place& place, int t,
                                      int length) const {
#pragma unroll
    for (int group = 0; group < kBatch; group += kGroup) {
      float partial[kGroup];
#pragma unroll
      for (int i = 0; i < kGroup; ++i) partial[i] = states.advance(steps[group + i]);
      sink.store(reducer.total(partial, place), gates[group / kGroup], t + group, length);
    }
  }
};

}  // namespace scan

extern "C" __global__ void __launch_bounds__(config::kBlockSize)
selective_scan_direct(const scan::Element* __restrict__ x, const scan::Element* __restrict__ delta,
                      const float* __restrict__ a, const scan::Element* __restrict__ b,
                      const scan::Element* __restrict__ c, const float* __restrict__ skip,
                      scan::Element* __restrict__ y, int length, int channels_given, const float* __restrict__ bias,
                      const scan::Element* __restrict__ z, const float* __restrict__ initial_states,
                      float* __restrict__ final_states) {
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
  const long long state =
      (rows * kGroups + group_of(in_range ? channel : 0, channels)) * kN + place.part * kStatesPerThread;
  const Source source{x + offset, delta + offset, b + state, c + state, channels, place.part, in_range,
                      bias_of(bias, channel, channels)};
  const Sink sink{y + offset, z + offset, channels, in_range && owns_a_step(place), owned_step(place)};
  CarriedStates states(a, skip, initial_states, batch, channel, channels, place);
  Reducer reducer{shared + threadIdx.x / 32 * kReductionFloatsPerWarp};

  Batch now;
  if constexpr (config::kPrefetch > 0) now.load(source, sink, 0, length);
#pragma unroll config::kUnroll
  for (int t = 0; t < length; t += kBatch) {
    if constexpr (config::kPrefetch > 0) {
      Batch next;
      next.load(source, sink, t + kBatch, length);
      now.run(states, reducer, sink, place, t, length);
      now = next;
    } else {
      now.load(source, sink, t, length);
      now.run(states, reducer, sink, place, t, length);
    }
  }
  states.write(final_states, batch, channel, channels, place);
}
