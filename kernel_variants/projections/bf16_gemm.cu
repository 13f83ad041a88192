// Both operands of one bf16 product of the library: the three products of split numbers, side by side along K.
#include "split.cuh"
#include "take_apart.cuh"

// from [rows, K] to the rows from `first_row` on of `to` [., 3 K] bf16: (hi, lo, hi), or for the weights (hi, hi, lo).
extern "C" __global__ void __launch_bounds__(config::kBlockSize)
split_rows(const float* __restrict__ from, unsigned short* __restrict__ to, long long elements, int k_size, int first_row,
           int of_weights) {
  using namespace projections;
  for_each_vector(from, elements / kWidth, [&](long long i, float (&values)[kWidth]) {
    const long long row = first_row + i * kWidth / k_size;
    unsigned short* at = to + row * 3 * k_size + i * kWidth % k_size;
    unsigned short* second = at + k_size;
    unsigned short* third = second + k_size;
    if constexpr (kWidth == 4) {
      const Parts parts = split(make_float4(values[0], values[1], values[2], values[3]));
      const uint2 high = make_uint2(parts.high[0], parts.high[1]);
      const uint2 low = make_uint2(parts.low[0], parts.low[1]);
      *reinterpret_cast<uint2*>(at) = high;
      *reinterpret_cast<uint2*>(second) = of_weights != 0 ? high : low;
      *reinterpret_cast<uint2*>(third) = of_weights != 0 ? low : high;
    } else {
      const Parts parts = split(make_float4(values[0], 0.0f, 0.0f, 0.0f));
      const unsigned short high = static_cast<unsigned short>(parts.high[0] & 0xffffu);
      const unsigned short low = static_cast<unsigned short>(parts.low[0] & 0xffffu);
      *at = high;
      *second = of_weights != 0 ? high : low;
      *third = of_weights != 0 ? low : high;
    }
  });
}
