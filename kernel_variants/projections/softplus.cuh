// The epilogue of delta, and accesses that every kernel of this family shares.
#pragma once

namespace projections {

// softplus(v) = max(v, 0) + log1p(exp(-|v|)), which overflows nowhere. log1p(e) is e times a polynomial, the minimax fit of
// log1p(e) / e on [0, 1] (Remez, relative): 1.4e-7 in fp32 arithmetic, so that a small delta is as exact as a large one.
__device__ __forceinline__ float softplus(float v) {
  const float e = expf(-fabsf(v));
  float p = 0x1.56ee0ap-8f;
  p = fmaf(p, e, -0x1.e369f2p-6f);
  p = fmaf(p, e, 0x1.4069dcp-4f);
  p = fmaf(p, e, -0x1.17d2c2p-3f);
  p = fmaf(p, e, 0x1.874a80p-3f);
  p = fmaf(p, e, -0x1.fcc8c6p-3f);
  p = fmaf(p, e, 0x1.553004p-2f);
  p = fmaf(p, e, -0x1.fffeacp-2f);
  p = fmaf(p, e, 0x1.fffffep-1f);
  return fmaf(e, p, fmaxf(v, 0.0f));
}

// kCount floats as one access; `at` is aligned to 4 * kCount bytes.
template <int kCount>
__device__ __forceinline__ void load_vector(float (&to)[kCount], const float* at) {
  static_assert(kCount == 1 || kCount == 4, "vectors of 1 or 4 floats");
  if constexpr (kCount == 4) {
    const float4 v = *reinterpret_cast<const float4*>(at);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  } else {
    to[0] = *at;
  }
}

template <int kCount>
__device__ __forceinline__ void store_vector(float* at, const float (&from)[kCount]) {
  static_assert(kCount == 1 || kCount == 4, "vectors of 1 or 4 floats");
  if constexpr (kCount == 4) {
    *reinterpret_cast<float4*>(at) = make_float4(from[0], from[1], from[2], from[3]);
  } else {
    *at = from[0];
  }
}

// The three outputs, and where a column of the joined product [rows, P + 2 S] goes.
struct Outputs {
  float* delta;    // [rows, P]
  float* b;        // [rows, S]
  float* c;        // [rows, S]
  int p_size;
  int s_size;

  // kCount neighbours that lie in one output: kCount divides P and S. biases: of the same columns, read for delta only.
  template <int kCount>
  __device__ __forceinline__ void store(long long row, int column, float (&values)[kCount],
                                        const float (&biases)[kCount]) const {
    if (column < p_size) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] = softplus(values[i] + biases[i]);
      store_vector<kCount>(delta + row * p_size + column, values);
    } else if (column < p_size + s_size) {
      store_vector<kCount>(b + row * s_size + (column - p_size), values);
    } else if (column < p_size + 2 * s_size) {
      store_vector<kCount>(c + row * s_size + (column - p_size - s_size), values);
    }
  }
};

}  // namespace projections
