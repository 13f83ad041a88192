// The epilogue that every kernel of this family ends with: y = scale * z * sigmoid(z), z = sum + bias.
#pragma once

namespace linear {

// z / (1 + exp(-z)) stays finite where sigmoid(z) underflows: a huge exp(-z) gives 0. The approximate division errs by
// 2 units in the last place and needs no call, which matters where a thread ends with 64 of them.
__device__ __forceinline__ float swish_scaled(float z, float scale) {
  return scale * __fdividef(z, 1.0f + expf(-z));
}

// kCount floats as one access; `at` is aligned to 4 * kCount bytes.
template <int kCount>
__device__ __forceinline__ void load_vector(float (&to)[kCount], const float* at) {
  if constexpr (kCount == 4) {
    const float4 v = *reinterpret_cast<const float4*>(at);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  } else if constexpr (kCount == 2) {
    const float2 v = *reinterpret_cast<const float2*>(at);
    to[0] = v.x, to[1] = v.y;
  } else {
    static_assert(kCount == 1, "vectors of 1, 2 or 4 floats");
    to[0] = *at;
  }
}

template <int kCount>
__device__ __forceinline__ void store_vector(float* at, const float (&from)[kCount]) {
  if constexpr (kCount == 4) {
    *reinterpret_cast<float4*>(at) = make_float4(from[0], from[1], from[2], from[3]);
  } else if constexpr (kCount == 2) {
    *reinterpret_cast<float2*>(at) = make_float2(from[0], from[1]);
  } else {
    *at = from[0];
  }
}

}  // namespace linear
