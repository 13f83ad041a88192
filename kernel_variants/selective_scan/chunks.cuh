// A sequence in kChunks chunks that are scanned at once: where each lies, and the state that arrives at it.
//
// A first pass (chunk_states.cuh) leaves for every chunk but the last the state that it ends in from h = 0, and the sum of
// its deltas. The product of a chunk's decays is exp(A sum), so that h after it is exp(A sum) h + state: never a quotient
// of products, which underflow. Each thread takes its own states through the chunks before its own, in their order.
// Layout: states [batch, chunks - 1, channels, N]; sums [batch, chunks - 1, channels]. Both are written while the second
// pass may already run, so that its pointers to them are not __restrict__: such loads may come before the wait.
#pragma once

#include "options.cuh"

namespace scan {

constexpr int kChunks = config::kAlgorithm == config::Algorithm::chunked ? config::kChunks : 1;

// A chunk of one batch's sequence. All but the last have the same whole number of tiles; the last ones may be empty.
struct Chunk {
  int batch;
  int number;
  int start;
  int length;

  // index: batch * chunks + number, of `chunks` of the kChunks.
  __device__ Chunk(int index, int chunks, int sequence) {
    if constexpr (kChunks == 1) {
      batch = index, number = 0, start = 0, length = sequence;
    } else {
      constexpr long long kUnit = static_cast<long long>(config::kTileL) * kChunks;
      const long long most = (sequence + kUnit - 1) / kUnit * config::kTileL;
      batch = index / chunks;
      number = index % chunks;
      start = static_cast<int>(min(number * most, static_cast<long long>(sequence)));
      length = static_cast<int>(min(most, static_cast<long long>(sequence - start)));
    }
  }

  // Whether the sequence ends in it. An empty one after it does not count.
  __device__ bool ends(int sequence) const { return kChunks == 1 || (length > 0 && start + length == sequence); }

  // Of `channel` in what the first pass leaves, for the chunk `chunk` of the same batch.
  __device__ long long place(int chunk, int channel, int channels) const {
    return (static_cast<long long>(batch) * (kChunks - 1) + chunk) * channels + channel;
  }
};

// Waits until the kernel launched before this one has ended and what it wrote can be read.
__device__ __forceinline__ void wait_for_launch_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// Lets the kernel launched after this one start where there is room.
__device__ __forceinline__ void let_launch_after_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Takes the states through the chunks before `chunk`. What so many of them left is loaded at once.
__device__ __forceinline__ void pass_chunks(CarriedStates& states, const Chunk& chunk, const float* chunk_states,
                                            const float* chunk_sums, int channel, int channels, const Place& place) {
  if constexpr (kChunks > 1) {
    // at least 1, since this is compiled for one chunk too
    constexpr int kAtOnce = kChunks > 7 ? 7 : kChunks > 1 ? kChunks - 1 : 1;
    wait_for_launch_before();
    if (channel >= channels) return;
    for (int first = 0; first < chunk.number; first += kAtOnce) {
      const long long at = chunk.place(first, channel, channels);
      const float* const sums_at = chunk_sums + at;
      const float* const ends_at = chunk_states + at * kN + place.part * kStatesPerThread;
      const int count = chunk.number - first;
      float sums[kAtOnce];
      float ends[kAtOnce][kStatesPerThread];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (i >= count) continue;
        sums[i] = sums_at[static_cast<long long>(i) * channels];
        load_floats<kStatesPerThread, 4>(ends[i], ends_at + static_cast<long long>(i) * channels * kN);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (i >= count) continue;
#pragma unroll
        for (int j = 0; j < kStatesPerThread; ++j) {
          states.h[j] = fmaf(decay(sums[i], states.a[j]), states.h[j], ends[i][j]);
        }
      }
    }
  }
}

}  // namespace scan
