// Kernel 1: block (split, row) walks its part of a row, [splits, rows] partial results. Kernel 2: combines the splits.
#include "combine.cuh"
#include "combine.cuh"

extern "C" __global__ void row_sums_partial(const float* __restrict__ x, float* __restrict__ part_total,
                                            float* __restrict__ part_largest, long long rows, int columns, float scale) {
  extern __shared__ Pair found[];
  static_assert(config::kColumns > 0, "columns are compiled in");
  const long long row = blockIdx.y;
  const int first = blockIdx.x * config::kBlockSize + threadIdx.x;
  const int stride = config::kSplits * config::kBlockSize;
  const int steps = first < columns ? (columns - first + stride - 1) / stride : 0;
  Pair mine = nothing();
  for (int step = 0; step < steps; ++step) {
    const int walked = config::kOrder == config::Order::forward ? step : steps - 1 - step;
    const float value = scale * x[row * columns + first + walked * stride];
    mine = combine(mine, {value, value});
  }
  found[threadIdx.x] = mine;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < config::kBlockSize; ++i) mine = combine(mine, found[i]);
  part_total[blockIdx.x * rows + row] = mine.total;
  part_largest[blockIdx.x * rows + row] = mine.largest;
}

extern "C" __global__ void row_sums_combine(const float* __restrict__ part_total, const float* __restrict__ part_largest,
                                            float* __restrict__ total, float* __restrict__ largest, long long rows,
                                            unsigned int splits) {
  const long long row = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  Pair all = nothing();
  for (unsigned int split = 0; split < splits; ++split) {
    all = combine(all, {part_total[split * rows + row], part_largest[split * rows + row]});
  }
  total[row] = all.total;
  largest[row] = all.largest;
}
