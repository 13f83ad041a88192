// What a problem may have besides: the options of the scan, and the type of its elements.
//
//   delta <- softplus(delta + bias);   h_{-1} <- initial;   y <- y z sigmoid(z);   final <- h_{L-1}
#pragma once

#include "scan.cuh"

// Options as they are where a problem does not name them: the prelude declares in `config` only those that differ,
// and a name that `config` itself declares hides the one that it finds through a using-directive.
namespace not_given {
constexpr long long kG = 1, kBias = 0, kSoftplus = 0, kGate = 0, kSkip = 1, kInitial = 0, kFinal = 0, kBfloat16 = 0;
}
namespace config {
using namespace not_given;
}

namespace scan {

// Whether delta is not yet what the recurrence takes.
constexpr bool kRaw = config::kBias || config::kSoftplus;
// Groups of channels, each with rows of B and C of its own.
constexpr int kGroups = static_cast<int>(config::kG);

// ---- elements: x, delta, B, C, z and y are of this type; all else, and all arithmetic, is fp32

struct Bfloat16 {
  unsigned short bits;

  Bfloat16() = default;
  __device__ __forceinline__ Bfloat16(float value) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value)); }
  __device__ __forceinline__ operator float() const { return __uint_as_float(static_cast<unsigned>(bits) << 16); }
};

template <bool kNarrow>
struct ElementOf {
  using Type = float;
};
template <>
struct ElementOf<true> {
  using Type = Bfloat16;
};
using Element = ElementOf<config::kBfloat16 != 0>::Type;

__device__ __forceinline__ float load_global(const float* from) { return __ldg(from); }
__device__ __forceinline__ float load_global(const Bfloat16* from) {
  return __uint_as_float(static_cast<unsigned>(__ldg(&from->bits)) << 16);
}

// The two elements of a 32-bit word, the first in its lower half.
__device__ __forceinline__ void unpack(float& first, float& second, unsigned word) {
  first = __uint_as_float(word << 16);
  second = __uint_as_float(word & 0xffff0000u);
}

// As for floats.
template <int kCount, int kWidest>
__device__ __forceinline__ void load_floats(float (&to)[kCount], const Bfloat16* from) {
  if constexpr (kCount % 4 == 0 && kWidest % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      const uint2 words = *reinterpret_cast<const uint2*>(from + i);
      unpack(to[i], to[i + 1], words.x);
      unpack(to[i + 2], to[i + 3], words.y);
    }
  } else if constexpr (kCount % 2 == 0 && kWidest % 2 == 0) {
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      unpack(to[i], to[i + 1], *reinterpret_cast<const unsigned*>(from + i));
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = from[i];
  }
}

// ---- options

// delta as the recurrence takes it. log1p keeps small values, and the exponential can't overflow.
__device__ __forceinline__ float step_size(float delta, float bias) {
  const float given = config::kBias ? delta + bias : delta;
  if constexpr (config::kSoftplus) {
    return fmaxf(given, 0.0f) + log1pf(expf(-fabsf(given)));
  } else {
    return given;
  }
}

// y z sigmoid(z), or y where nothing gates.
__device__ __forceinline__ float gated(float y, float z) {
  if constexpr (config::kGate) {
    return y * (z / (1.0f + expf(-z)));
  } else {
    return y;
  }
}

__device__ __forceinline__ float bias_of(const float* bias, int channel, int channels) {
  if constexpr (config::kBias) {
    return channel < channels ? bias[channel] : 0.0f;
  } else {
    return 0.0f;
  }
}

// Which rows of B and C a channel has.
__device__ __forceinline__ int group_of(int channel, int channels) {
  if constexpr (kGroups == 1) {
    return 0;
  } else {
    return channel / (channels / kGroups);
  }
}

// The thread's states of its pair, which may come from a call before and go to one after. Lanes beyond N hold
// A = B = C = 0 and add nothing.
struct CarriedStates {
  float a[kStatesPerThread];
  float h[kStatesPerThread];
  float skip;  // 0 except in the pair's first thread, so that x * skip is added once

  // a_matrix [channels, N], initial [batch, channels, N]; `channel` may be out of range, then nothing is read.
  __device__ CarriedStates(const float* a_matrix, const float* skip_vector, const float* initial, int batch, int channel,
                           int channels, const Place& place) {
    const bool in_range = channel < channels;
    if constexpr (config::kSkip) skip = in_range && place.first ? skip_vector[channel] : 0.0f;
    const float* from = initial + (static_cast<long long>(batch) * channels + channel) * kN;
#pragma unroll
    for (int i = 0; i < kStatesPerThread; ++i) {
      const int n = place.part * kStatesPerThread + i;
      a[i] = in_range && n < kN ? a_matrix[static_cast<long long>(channel) * kN + n] * scale_of_a() : 0.0f;
      h[i] = config::kInitial && in_range && n < kN ? from[n] : 0.0f;
    }
  }

  // x * skip, of which each pair's first thread has its part.
  __device__ __forceinline__ float skipped(float x) const {
    if constexpr (config::kSkip) {
      return x * skip;
    } else {
      return 0.0f;
    }
  }

  // Moves the states one step on; returns this thread's part of y.
  __device__ __forceinline__ float advance(const Step& step) {
    const float input = step.delta * step.x;
    float partial = skipped(step.x);
#pragma unroll
    for (int i = 0; i < kStatesPerThread; ++i) {
      h[i] = fmaf(decay(step.delta, a[i]), h[i], input * step.b[i]);
      partial = fmaf(h[i], step.c[i], partial);
    }
    return partial;
  }

  // final [batch, channels, N]: the states as they are now.
  __device__ void write(float* final_states, int batch, int channel, int channels, const Place& place) const {
    if constexpr (config::kFinal) {
      float* to = final_states + (static_cast<long long>(batch) * channels + channel) * kN;
#pragma unroll
      for (int i = 0; i < kStatesPerThread; ++i) {
        const int n = place.part * kStatesPerThread + i;
        if (channel < channels && n < kN) to[n] = h[i];
      }
    }
  }
};

}  // namespace scan
