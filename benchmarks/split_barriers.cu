// What racecheck says of split barriers: a textbook producer and consumer in two ways, of which the piped scan has `joint`.
//
//   nvcc -arch=sm_90a -O2 -o split_barriers benchmarks/split_barriers.cu
//   compute-sanitizer --tool racecheck ./split_barriers split|joint|none
//
// Four warps write tiles of shared memory, four others read them; there is room for two. `full`, a tile was written, and
// `empty`, it was read, are named barriers of all 256 threads, two of each, for even and odd tiles. Both sides come to
// them in the same order: full of the first and second tile, empty of the first, full of the third, and so on.
//   split  who has something to tell arrives (bar.arrive) and goes on, who needs to know waits (bar.sync)
//   joint  both wait; between what a side tells and what it waits for next it touches no tile, so that the same accesses
//          are ordered
//   none   joint, but nobody says that a tile was read: a race, which must be reported
// The PTX manual (bar, barrier) gives the first as its example of a producer and a consumer. Exits with 1 where a sum is
// wrong.
#include <cstdio>
#include <cstring>

enum class Way { split, joint, none };

constexpr int kSide = 128;
constexpr int kThreads = 2 * kSide;
constexpr int kFull = 1;
constexpr int kEmpty = 3;
constexpr int kTiles = 50;
constexpr int kBlocks = 4;

__device__ __forceinline__ void wait_at(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}

template <Way kWay>
__device__ __forceinline__ void tell(int barrier) {
  if constexpr (kWay == Way::split) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
  } else {
    wait_at(barrier);
  }
}

__device__ __forceinline__ int value_of(int tile, int thread) { return 3 * tile + thread; }

template <Way kWay>
__global__ void pass_tiles(int* sums) {
  __shared__ int tiles[2][kSide];
  const int thread = static_cast<int>(threadIdx.x) % kSide;
  if (threadIdx.x < kSide) {
    for (int tile = 0; tile < 2; ++tile) {
      tiles[tile][thread] = value_of(tile, thread);
      tell<kWay>(kFull + tile);
    }
    for (int tile = 2; tile < kTiles + 2; ++tile) {
      if (kWay != Way::none) wait_at(kEmpty + tile % 2);
      if (tile >= kTiles) continue;
      tiles[tile % 2][thread] = value_of(tile, thread);
      tell<kWay>(kFull + tile % 2);
    }
  } else {
    int sum = 0;
    wait_at(kFull);
    for (int tile = 0; tile < kTiles; ++tile) {
      // the next tile is waited for before this one is given up, as a pipeline does that reads ahead
      if (tile + 1 < kTiles) wait_at(kFull + (tile + 1) % 2);
      sum += tiles[tile % 2][(thread + 37) % kSide];
      if (kWay != Way::none) tell<kWay>(kEmpty + tile % 2);
    }
    sums[blockIdx.x * kSide + thread] = sum;
  }
}

int main(int count, char** given) {
  const char* way = count == 2 ? given[1] : "";
  int* sums;
  cudaMallocManaged(&sums, kBlocks * kSide * sizeof(int));
  if (!std::strcmp(way, "split")) {
    pass_tiles<Way::split><<<kBlocks, kThreads>>>(sums);
  } else if (!std::strcmp(way, "joint")) {
    pass_tiles<Way::joint><<<kBlocks, kThreads>>>(sums);
  } else if (!std::strcmp(way, "none")) {
    pass_tiles<Way::none><<<kBlocks, kThreads>>>(sums);
  } else {
    std::fprintf(stderr, "usage: %s split|joint|none\n", given[0]);
    return 2;
  }
  if (const cudaError_t error = cudaDeviceSynchronize(); error != cudaSuccess) {
    std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
    return 2;
  }
  int wrong = 0;
  for (int i = 0; i < kBlocks * kSide; ++i) {
    wrong += sums[i] != 3 * kTiles * (kTiles - 1) / 2 + kTiles * ((i % kSide + 37) % kSide);
  }
  std::printf("%s: %d of %d sums are wrong\n", way, wrong, kBlocks * kSide);
  return wrong > 0;
}
