// The projections on Hopper's tensor cores at fp32 accuracy: [delta | B | C] = x [rows, K] [W_delta; W_B; W_C]^T, with
// softplus(. + bias) for delta.
//
// Each operand is scaled and split into two fp16 numbers, see split.cuh, and all products but lo lo are summed in fp32,
// those with a lo apart. Rows whose numbers the parts don't hold are computed in CUDA cores instead. A block keeps
// `columns` rows of the weights, all of K, in shared memory for good: it splits them once. Its warpgroups then work alone,
// without a barrier: each takes every (row_blocks warpgroups)-th 64 rows of x, which each lane copies for itself, `stages`
// slices of 32 columns ahead, splits in registers and gives to the tensor cores from there, a slice's products while the
// next slice is split. What one warpgroup spends on softplus and stores, the others multiply.
//
// The order of the columns along K inside a product is free as long as both operands agree: product j of a slice takes
// columns 16j + 4t + {0, 1, 2, 3} into its places {2t, 2t + 1, 2t + 8, 2t + 9}, t = 0 .. 3, so that a lane's 16 bytes of x
// feed one product and four lanes read 64 bytes of a row. The order of the weights' rows in the tile is free too: row
// 16p + 8u + 2t + e of the tile is column 16p + 4t + 2u + e, so that a lane stores 16 bytes.
// Source of the fragment layouts and descriptors: PTX ISA, section "wgmma".
#include "hopper.cuh"
#include "softplus.cuh"

namespace projections {

constexpr int kColumns = config::kColumns;
constexpr int kStages = config::kStages;
constexpr int kGroups = config::kWarpgroups;
constexpr int kWidth = config::kVectorWidth;
constexpr int kThreads = 128 * kGroups;
constexpr int kRows = 64;    // of a warpgroup's tile
constexpr int kDepth = 32;
constexpr int kTileBytes = kColumns * kRowBytes;
// A slice of x: four vectors of 16 bytes for each thread.
constexpr int kStageVectors = 4 * kThreads;
constexpr int kSums = kColumns / 2;
// Vectors of the weights that a thread has under way while it splits them.
constexpr int kAtOnce = 8;
// Largest numbers of a row that tensor cores take: 1023 of x, 63 of the weights.
constexpr float kXScale = 64.0f;
constexpr float kWScale = 1024.0f;

static_assert(kColumns % 16 == 0, "a lane stores four neighbours of 16 columns");
static_assert(kTileBytes % 1024 == 0, "swizzled tiles start at multiples of 1024 bytes");
static_assert(kThreads / 8 % 16 == 0, "a thread's rows of the weights have one place in 16");
static_assert(kStages >= 2, "a slice lands while another is multiplied");

// Of kLanes neighbours, a power of two; all lanes of the warp take part.
template <int kLanes>
__device__ __forceinline__ float largest_of_lanes(float largest) {
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
  }
  return largest;
}

struct Sizes {
  int rows;
  int p;
  int s;
  int k;

  __device__ __forceinline__ int slices() const { return (k + kDepth - 1) / kDepth; }
  __device__ __forceinline__ int tiles() const { return (rows - 1) / kRows + 1; }
};

struct Weights {
  const float* delta;    // [p, k]
  const float* b;        // [s, k]
  const float* c;        // [s, k]

  // Column `column` of the joined product; nullptr where there is none.
  __device__ __forceinline__ const float* row(int column, const Sizes& sizes) const {
    if (column < sizes.p) return delta + static_cast<long long>(column) * sizes.k;
    if (column < sizes.p + sizes.s) return b + static_cast<long long>(column - sizes.p) * sizes.k;
    if (column < sizes.p + 2 * sizes.s) return c + static_cast<long long>(column - sizes.p - sizes.s) * sizes.k;
    return nullptr;
  }

  // The block's columns from n0 on, split: slices of tiles [kColumns rows, hi of 32 columns | lo of them]. Eight threads
  // take a row, 16 bytes of each slice for each of them. Returns whether the parts hold this thread's rows.
  __device__ bool split_into(char* tiles, int n0, const Sizes& sizes) const {
    const int first = static_cast<int>(threadIdx.x) / 8;
    const int eighth = static_cast<int>(threadIdx.x) % 8;
    const int swizzle = first % 8;
    // A step from row to row is a multiple of 16, so that this is the thread's place in all of its rows.
    const int column = first % 8 / 2 * 4 + first % 16 / 8 * 2 + first % 2;
    const int slices = sizes.slices();
    bool held = true;
#pragma unroll 1
    for (int tile_row = first; tile_row < kColumns; tile_row += kThreads / 8) {
      const float* from = row(n0 + tile_row / 16 * 16 + column, sizes);
      float largest = 0.0f;
#pragma unroll 1
      for (int slice = 0; slice < slices; slice += kAtOnce) {
        float4 vectors[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int k = (slice + i) * kDepth + eighth * 4;
          vectors[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
          if (from != nullptr && k < sizes.k) vectors[i] = *reinterpret_cast<const float4*>(from + k);
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (slice + i >= slices) break;
          char* to = tiles + (slice + i) * kTileBytes + tile_row * kRowBytes + eighth % 4 * 4;
          largest = largest_of(largest, vectors[i]);
          const Parts parts = split_f16(vectors[i], kWScale);
#pragma unroll
          for (int pair = 0; pair < 2; ++pair) {
            const int chunk = eighth / 4 * 2 + pair;
            *reinterpret_cast<unsigned*>(to + (chunk ^ swizzle) * 16) = parts.high[pair];
            *reinterpret_cast<unsigned*>(to + ((4 + chunk) ^ swizzle) * 16) = parts.low[pair];
          }
        }
      }
      largest = largest_of_lanes<8>(largest);
      held = held && held_in_f16(largest, kWScale);
    }
    return held;
  }
};

// The slices of x that a warpgroup works on, in order, as its threads copy them: tile by tile.
struct Copies {
  const float* x;
  const Sizes& sizes;
  float4* ring;      // the thread's first vector; its others are kThreads further on each
  int tile;
  int step;          // to the warpgroup's next tile
  int slice = 0;
  int stage = 0;

  // One slice, or nothing beyond the last tile. Either way it is one group of copies.
  __device__ __forceinline__ void next() {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (tile < sizes.tiles()) {
      const long long row = static_cast<long long>(tile) * kRows + static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane / 4;
      const int k = slice * kDepth + lane % 4 * 4;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          // 4 divides K
          const bool inside = row + 8 * half < sizes.rows && k + 16 * j < sizes.k;
          const float* from = inside ? x + (row + 8 * half) * sizes.k + k + 16 * j : x;
          copy_or_clear(ring + stage * kStageVectors + (2 * half + j) * kThreads, from, inside);
        }
      }
    }
    close_copies();
    stage = stage + 1 == kStages ? 0 : stage + 1;
    slice = slice + 1;
    if (slice == sizes.slices()) {
      slice = 0;
      tile += step;
    }
  }
};

// Tensor cores cut off as they add, at each addition a bit of the sum so far: the small products have sums of their own.
struct Sums {
  float large[kSums];
  float small[kSums];

  // The products must have ended.
  __device__ __forceinline__ float of(int s) const { return (large[s] + small[s]) * (1.0f / (kXScale * kWScale)); }
};

// A warpgroup's slice of x, 64 rows and 32 columns, as wgmma takes it from registers.
struct Fragments {
  unsigned high[2][4];
  unsigned low[2][4];

  // from: the thread's vectors of the slice; largest: of its two rows so far.
  __device__ __forceinline__ void load(const float4* from, float (&largest)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float4 vector = from[(2 * half + j) * kThreads];
        largest[half] = largest_of(largest[half], vector);
        const Parts parts = split_f16(vector, kXScale);
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
          high[j][half + 2 * pair] = parts.high[pair];
          low[j][half + 2 * pair] = parts.low[pair];
        }
      }
    }
  }

  // All products of the slice.
  __device__ __forceinline__ void multiply_with(const char* tile, Sums& sums, int keep) const {
    begin_products();
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      multiply(sums.small, low[j], tile, 2 * j, j > 0 ? 1 : keep);
      multiply(sums.small, high[j], tile, 4 + 2 * j, 1);
      multiply(sums.large, high[j], tile, 2 * j, j > 0 ? 1 : keep);
    }
    close_products();
  }
};

// Which of a lane's two rows, the second 8 after the first, are to be stored.
struct Chosen {
  bool row[2];
};

// The lane's columns of its rows, 16p + 4t to 16p + 4t + 3; value(half, p, v): the product at row half and the v-th of
// these columns.
template <typename Value>
__device__ __forceinline__ void store_columns(const Outputs& outputs, const float* biases, long long first_row, int n0,
                                              const Chosen& chosen, Value value) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int part = 0; part < kColumns / 16; ++part) {
    const int column = 16 * part + 4 * t;
    float of_columns[4];
    load_vector<4>(of_columns, biases + column);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const long long row = first_row + 8 * half;
      if (!chosen.row[half]) continue;
#pragma unroll
      for (int v = 0; v < 4; v += kWidth) {
        float some[kWidth], some_biases[kWidth];
#pragma unroll
        for (int i = 0; i < kWidth; ++i) some[i] = value(half, part, v + i), some_biases[i] = of_columns[v + i];
        outputs.store(row, n0 + column + v, some, some_biases);
      }
    }
  }
}

// The same rows and columns by fp32 arithmetic, for any numbers.
__device__ __forceinline__ void store_in_fp32(const float* x, const Weights& weights, const Sizes& sizes,
                                           const Outputs& outputs, const float* biases, long long first_row, int n0,
                                           const Chosen& chosen) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll 1
  for (int half = 0; half < 2; ++half) {
    const long long row = first_row + 8 * half;
    if (half == 0 ? !chosen.row[0] : !chosen.row[1]) continue;
#pragma unroll 1
    for (int i = 0; i < kColumns / 4; ++i) {
      const int column = i / 4 * 16 + 4 * t + i % 4;
      const float* weight = weights.row(n0 + column, sizes);
      if (weight == nullptr) continue;
      float sum = 0.0f;
#pragma unroll 1
      for (int k = 0; k < sizes.k; k += 4) {
        const float4 a = *reinterpret_cast<const float4*>(x + row * sizes.k + k);
        const float4 b = *reinterpret_cast<const float4*>(weight + k);
        sum = fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
      }
      float one[1] = {sum};
      const float bias[1] = {biases[column]};
      outputs.store(row, n0 + column, one, bias);
    }
  }
}

}  // namespace projections

// Blocks: all parts of the columns for the first share of the rows, then for the next. Shared memory from a multiple of
// 1024 bytes on: the weights' slices, the ring of x [kStages][4][kThreads] vectors, the biases.
extern "C" __global__ void __launch_bounds__(projections::kThreads, 1)
wgmma(const float* __restrict__ x, const float* __restrict__ w_delta, const float* __restrict__ w_b,
      const float* __restrict__ w_c, const float* __restrict__ bias, float* __restrict__ delta, float* __restrict__ b,
      float* __restrict__ c, int rows, int p_size, int s_size, int k_size) {
  using namespace projections;
  extern __shared__ char shared[];
  char* tiles = shared + (-static_cast<unsigned>(__cvta_generic_to_shared(shared)) & 1023);
  const Sizes sizes{rows, p_size, s_size, k_size};
  const int slices = sizes.slices();
  float4* ring = reinterpret_cast<float4*>(tiles + slices * kTileBytes);
  float* biases = reinterpret_cast<float*>(ring + kStages * kStageVectors);

  const int parts = (p_size + 2 * s_size - 1) / kColumns + 1;
  const int n0 = static_cast<int>(blockIdx.x) % parts * kColumns;
  const int row_blocks = static_cast<int>(gridDim.x) / parts;
  const int group = static_cast<int>(threadIdx.x) / 128;
  // What is left after whole rounds is spread over the blocks.
  const int first_tile = group * row_blocks + static_cast<int>(blockIdx.x) / parts;

  Copies copies{x, sizes, ring + threadIdx.x, first_tile, row_blocks * kGroups};
#pragma unroll
  for (int i = 0; i + 1 < kStages; ++i) copies.next();
  const Weights weights{w_delta, w_b, w_c};
  const bool held = weights.split_into(tiles, n0, sizes);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kColumns; i += kThreads) {
    biases[i] = n0 + i < p_size ? bias[n0 + i] : 0.0f;
  }
  publish_tiles();
  const bool all_held = __syncthreads_and(held ? 1 : 0) != 0;

  const Outputs outputs{delta, b, c, p_size, s_size};
  const int lane_row = static_cast<int>(threadIdx.x) % 128 / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
  const float4* mine = ring + threadIdx.x;
  Sums sums;
  float largest[2];
  Fragments even, odd;
  int stage = 0;
  // Registers of `now` are free: the products that read them ended at the wait of the slice before.
  const auto take = [&](Fragments& now, int slice) {
    wait_copies<kStages - 2>();
    now.load(mine + stage * kStageVectors, largest);
    stage = stage + 1 == kStages ? 0 : stage + 1;
    copies.next();
    now.multiply_with(tiles + slice * kTileBytes, sums, slice > 0 ? 1 : 0);
    wait_products<1>();
  };
  for (int tile = first_tile; tile < sizes.tiles(); tile += row_blocks * kGroups) {
    largest[0] = largest[1] = 0.0f;
    for (int slice = 0; slice < slices; slice += 2) {
      take(even, slice);
      if (slice + 1 == slices) break;
      take(odd, slice + 1);
    }
    wait_products<0>();
    pin(sums.large);
    pin(sums.small);
    const long long row = static_cast<long long>(tile) * kRows + lane_row;
    Chosen held, others;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float of_row = largest_of_lanes<4>(largest[half]);
      const bool exists = row + 8 * half < rows;
      held.row[half] = exists && all_held && held_in_f16(of_row, kXScale);
      others.row[half] = exists && !held.row[half];
    }
    // Sum 4 i + e is row (e / 2) * 8 of the lane's and row 8 i + 2 t + e % 2 of the weights' tile.
    store_columns(outputs, biases, row, n0, held, [&](int half, int part, int v) {
      return sums.of(8 * part + 2 * half + v / 2 * 4 + v % 2);
    });
    // seldom
    if (others.row[0] || others.row[1]) store_in_fp32(x, weights, sizes, outputs, biases, row, n0, others);
  }
}
