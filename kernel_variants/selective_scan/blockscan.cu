// Selective scan as a parallel scan over time of (product of decays, state) pairs, within a block.
//
// A block walks one batch's sequence in tiles for kChannels neighbouring channels. A warp is kLaneChannels channels by
// kTimeLanes lanes along time, kTimeWarps warps lie along time, and a thread holds `items` consecutive steps. For
// kStates states at once it composes its steps, whose decays and inputs it keeps; the threads' pairs are scanned over the
// lanes by shuffles and over the warps through shared memory; then it takes its steps from the state that arrives, and
// sums over the states. The product of a thread's decays is exp(A sum delta): items + 1 exponentials for `items` steps.
// Layout: x, delta, y [batch, length, channels]; b, c [batch, length, N]; a [channels, N]; skip [channels].
// Source: Blelloch, "Prefix Sums and Their Applications" (1990), section 1.4.1, first-order recurrences.
#include "blockscan.cuh"

namespace scan {

// kStates (product of decays, state) pairs over some steps: h -> product h + state.
struct Pairs {
  float product[kStates];
  float state[kStates];

  // Over the steps of all lanes up to this one.
  __device__ __forceinline__ void scan_lanes(int lane) {
#pragma unroll
    for (int distance = 1; distance < kTimeLanes; distance *= 2) {
#pragma unroll
      for (int i = 0; i < kStates; ++i) {
        const float before = __shfl_up_sync(kFullMask, product[i], distance * kLaneChannels);
        const float from = __shfl_up_sync(kFullMask, state[i], distance * kLaneChannels);
        if (lane >= distance) {
          state[i] = fmaf(product[i], from, state[i]);
          product[i] *= before;
        }
      }
    }
  }

  // h: before the warp's steps; becomes the state before this lane's. The pairs must have been scanned.
  __device__ __forceinline__ void states_before(float (&h)[kStates], int lane) const {
#pragma unroll
    for (int i = 0; i < kStates; ++i) {
      const float before = __shfl_up_sync(kFullMask, product[i], kLaneChannels);
      const float from = __shfl_up_sync(kFullMask, state[i], kLaneChannels);
      if (lane > 0) h[i] = fmaf(before, h[i], from);
    }
  }

  __device__ __forceinline__ void apply(float (&h)[kStates]) const {
#pragma unroll
    for (int i = 0; i < kStates; ++i) h[i] = fmaf(product[i], h[i], state[i]);
  }
};

__device__ __forceinline__ void store_states(float* to, const float (&from)[kStates]) {
#pragma unroll
  for (int i = 0; i < kStates; ++i) to[i] = from[i];
}

// What a thread's steps do to kStates states: h -> decays h + driven.
struct Steps {
  float decays[kItems][kStates];
  float driven[kItems][kStates];
};

// The thread's steps of one tile.
struct Run {
  float delta[kItems];
  float sum;            // of delta
  float input[kItems];  // delta x
  float y[kItems];

  // from: x of the thread's first step; left: the steps from there to the sequence's end.
  __device__ __forceinline__ void load(const float* from, float skip, float bias, long long left) {
    sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const float x = from[i * kChannels];
      const float given = from[kDelta + i * kChannels];
      delta[i] = !kRaw || i < left ? step_size(given, bias) : 0.0f;
      sum += delta[i];
      input[i] = delta[i] * x;
      y[i] = config::kSkip ? x * skip : 0.0f;
    }
  }

  // The pairs of all steps together, from h = 0; what the steps need again is kept in `decays` and `driven`.
  __device__ __forceinline__ Pairs compose(const float* b_row, const float (&a)[kStates], Steps& steps) const {
    Pairs pairs;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      float b[kStates];
      load_floats<kStates, kStates>(b, b_row + i * kRowN);
#pragma unroll
      for (int n = 0; n < kStates; ++n) {
        steps.decays[i][n] = decay(delta[i], a[n]);
        steps.driven[i][n] = input[i] * b[n];
        pairs.state[n] = i == 0 ? steps.driven[0][n] : fmaf(steps.decays[i][n], pairs.state[n], steps.driven[i][n]);
      }
    }
#pragma unroll
    for (int n = 0; n < kStates; ++n) pairs.product[n] = decay(sum, a[n]);
    return pairs;
  }

  // The steps from the states before them, added to y.
  __device__ __forceinline__ void advance(const float* c_row, float (&h)[kStates], const Steps& steps) {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      float c[kStates];
      load_floats<kStates, kStates>(c, c_row + i * kRowN);
#pragma unroll
      for (int n = 0; n < kStates; ++n) {
        h[n] = fmaf(steps.decays[i][n], h[n], steps.driven[i][n]);
        y[i] = fmaf(h[n], c[n], y[i]);
      }
    }
  }
};

// What lies after the stages, at this thread's channel.
struct Shared {
  float* a;
  float* states;  // two, for even and odd tiles
  float* pairs;   // two, for even and odd turns

  __device__ Shared(float* from, const Lane& lane)
      : a(from + lane.channel * kStates), states(a + kMatrixFloats),
        pairs(from + 3 * kMatrixFloats + lane.channel * 2 * kStates) {}

  // h: at the tile's start; becomes the state before the warp's steps. The last warp's last lane leaves the state at the
  // tile's end in `after`.
  __device__ __forceinline__ void scan_warps(const Pairs& scanned, float (&h)[kStates], int turn, float* after,
                                             const Lane& lane) const {
    const bool last_lane = lane.lane == kTimeLanes - 1;
    if constexpr (kTimeWarps > 1) {
      float* room = pairs + turn % 2 * kPairFloats;
      if (last_lane && lane.warp < kTimeWarps - 1) {
        float* to = room + lane.warp * kChannels * 2 * kStates;
        store_states(to, scanned.product);
        store_states(to + kStates, scanned.state);
      }
      __syncthreads();
#pragma unroll
      for (int warp = 0; warp < kTimeWarps - 1; ++warp) {
        if (warp >= lane.warp) break;
        Pairs other;
        load_floats<kStates, kStates>(other.product, room + warp * kChannels * 2 * kStates);
        load_floats<kStates, kStates>(other.state, room + warp * kChannels * 2 * kStates + kStates);
        other.apply(h);
      }
    }
    if (last_lane && lane.warp == kTimeWarps - 1) {
      float end[kStates];
#pragma unroll
      for (int i = 0; i < kStates; ++i) end[i] = h[i];
      scanned.apply(end);
      store_states(after, end);
    }
  }
};

// left: the steps from the tile's first to the sequence's end.
__device__ __forceinline__ void run_tile(float* stage, int parity, long long left, float skip, float bias,
                                         const Shared& shared, const Lane& lane) {
  const int at = lane.warp * kTimeLanes + lane.lane;
  float* own = stage + at * kChannelRun + lane.channel;
  const float* row = stage + at * kStateRun;
  Run run;
  run.load(own, skip, bias, left - at * kItems);
#pragma unroll 1
  for (int turn = 0; turn < kTurns; ++turn) {
    const int from = turn * kChannels * kStates;
    float a[kStates];
    float h[kStates];
    Steps steps;
    load_floats<kStates, kStates>(a, shared.a + from);
    Pairs pairs = run.compose(row + kB + turn * kStates, a, steps);
    pairs.scan_lanes(lane.lane);
    load_floats<kStates, kStates>(h, shared.states + parity * kMatrixFloats + from);
    shared.scan_warps(pairs, h, turn, shared.states + (1 - parity) * kMatrixFloats + from, lane);
    pairs.states_before(h, lane.lane);
    run.advance(row + kC + turn * kStates, h, steps);
  }
#pragma unroll
  for (int i = 0; i < kItems; ++i) own[i * kChannels] = run.y[i];
}

// Calls visit(i, n, channel) for the thread's elements of A or of the states, of which some may not exist.
template <class Visit>
__device__ __forceinline__ void for_states(const Visit& visit) {
  for (int i = static_cast<int>(threadIdx.x); i < kMatrixFloats; i += kThreads) {
    visit(i, i / (kChannels * kStates) * kStates + i % kStates, i / kStates % kChannels);
  }
}

// A, the states before the first step, and zeros in the columns of B and C that no copy fills. a_matrix, initial: at the
// block's first channel.
__device__ __forceinline__ void prepare(float* stages, const float* a_matrix, const float* initial, int columns) {
  float* matrix = stages + kStages * kStageFloats;
  for_states([&](int i, int n, int channel) {
    const bool exists = n < kN && channel < columns;
    matrix[i] = exists ? a_matrix[channel * kN + n] * scale_of_a() : 0.0f;
    matrix[kMatrixFloats + i] = config::kInitial && exists ? initial[channel * kN + n] : 0.0f;
  });
  if constexpr (kRowN > kN) {
    // At least 1, so that the branch which is not taken has no division by zero either.
    constexpr int kPad = kRowN > kN ? kRowN - kN : 1;
    for (int i = static_cast<int>(threadIdx.x); i < kStages * 2 * kTile * kPad; i += kThreads) {
      const int row = i / kPad % (2 * kTile);
      float* stage = stages + i / (kPad * 2 * kTile) * kStageFloats;
      stage[kB + row / kItems * kStateRun + row % kItems * kRowN + kN + i % kPad] = 0.0f;
    }
  }
}

}  // namespace scan

extern "C" __global__ void __launch_bounds__(scan::kThreads, config::kMinBlocks)
selective_scan_blockscan(const float* __restrict__ x, const float* __restrict__ delta, const float* __restrict__ a,
                         const float* __restrict__ b, const float* __restrict__ c, const float* __restrict__ skip,
                         float* __restrict__ y, int length, int channels, const float* __restrict__ bias_vector,
                         const float* __restrict__ z, const float* __restrict__ initial_states,
                         float* __restrict__ final_states) {
  using namespace scan;
  extern __shared__ __align__(16) float stages[];
  const int blocks_per_batch = (channels + kChannels - 1) / kChannels;
  const int batch = static_cast<int>(blockIdx.x) / blocks_per_batch;
  const int first = static_cast<int>(blockIdx.x) % blocks_per_batch * kChannels;
  const long long rows = static_cast<long long>(batch) * length;
  const long long offset = rows * channels + first;
  const long long row = (rows * kGroups + group_of(first, channels)) * kN;
  const long long states = (static_cast<long long>(batch) * channels + first) * kN;
  const Block block{x + offset, delta + offset, z + offset, b + row,  c + row,
                    y + offset, channels,       length,     min(kChannels, channels - first)};
  const Lane lane;
  const Shared shared(stages + kStages * kStageFloats, lane);
  const float skipped = config::kSkip && lane.channel < block.columns ? skip[first + lane.channel] : 0.0f;
  const float bias = bias_of(bias_vector, first + lane.channel, channels);

#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) block.start(stages + i * kStageFloats, i * kTile);
  prepare(stages, a + static_cast<long long>(first) * kN, initial_states + states, block.columns);
  const int tiles = (length + kTile - 1) / kTile;
  int slot = 0;
  for (int tile = 0; tile < tiles; ++tile) {
    float* stage = stages + slot * kStageFloats;
    const long long t = static_cast<long long>(tile) * kTile;
    wait_copies<kStages - 2>();
    __syncthreads();  // this tile has arrived for all; the one before it has been stored
    block.start(stages + (slot == 0 ? kStages - 1 : slot - 1) * kStageFloats, t + (kStages - 1) * kTile);
    run_tile(stage, tile % 2, length - t, skipped, bias, shared, lane);
    __syncthreads();  // all of y is in the stage, and the states at the tile's end beside it
    block.store(stage, t);
    slot = slot + 1 == kStages ? 0 : slot + 1;
  }
  if constexpr (config::kFinal) {
    const float* end = stages + kStages * kStageFloats + (1 + tiles % 2) * kMatrixFloats;
    for_states([&](int i, int n, int channel) {
      if (n < kN && channel < block.columns) final_states[states + channel * kN + n] = end[i];
    });
  }
}
