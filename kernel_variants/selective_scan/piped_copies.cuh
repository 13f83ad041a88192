// How tiles of the piped scan reach shared memory: by the lanes of the helper warps, 16 bytes each, or in bulk, a box of
// a tensor map for each array. Either way each helper warp copies its own kHelperRows rows of a tile and waits for them.
// Source: PTX ISA, sections "cp.async", "cp.async.bulk.tensor", "mbarrier".
#pragma once

#include "piped_layout.cuh"

namespace scan {

// On ktune's CPU executor, which passes the pointer where a GPU gets a map, lanes copy in either case.
#ifdef KTUNE_CPU
constexpr bool kMaps = false;
#else
constexpr bool kMaps = config::kCopies == config::Copies::bulk;
#endif

// What a launch passes by value; the driver has encoded it.
struct alignas(64) TensorMap {
  char encoded[128];
};

template <bool kOfMaps>
struct InputOf {
  using Type = const Element* __restrict__;
};
template <>
struct InputOf<true> {
  using Type = TensorMap;
};
// x, delta, z, b or c as the kernel is given it.
using Input = InputOf<kMaps>::Type;

// Where a helper warp's rows of the first tile begin, and in what.
struct Origin {
  int batch;
  int step;        // of the sequence
  int channel;
  int group;
  int row;         // of the tile
  int sequence;    // its length
  int channels;
  int columns;     // channels of this block that exist
};

// act(row, column) for each vector of the first `rows` of a helper warp's rows and `width` of kColumns columns, by one lane
// each: the same lane at every call.
template <int kColumns, typename Act>
__device__ __forceinline__ void for_vectors(int rows, int width, Act act) {
  constexpr int kVectors = kColumns / kVector;
#pragma unroll
  for (int pass = 0; pass * 32 < kHelperRows * kVectors; ++pass) {
    const int i = pass * 32 + static_cast<int>(threadIdx.x) % 32;
    const int row = i / kVectors;
    const int column = i % kVectors * kVector;
    if (row < min(rows, kHelperRows) && column < width) act(row, column);
  }
}

__device__ __forceinline__ void copy_16(Element* to, const Element* from) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}

// By the lanes. Channels beyond the last are not copied, since what is computed of them is not stored, nor rows beyond
// the sequence, unless they must leave the states as they are: those are zeros.
struct LaneCopies {
  const Element* x;
  const Element* delta;
  const Element* z;
  const Element* b;
  const Element* c;
  Element* landing;     // of the first stage
  Origin origin;

  __device__ LaneCopies(const Element* x_given, const Element* delta_given, const Element* z_given,
                        const Element* b_given, const Element* c_given, Element* landing_given, char*,
                        const Origin& origin_given)
      : landing(landing_given), origin(origin_given) {
    const long long rows = static_cast<long long>(origin.batch) * origin.sequence + origin.step;
    const long long offset = rows * origin.channels + origin.channel;
    const long long state = (rows * kGroups + origin.group) * kN;
    x = x_given + offset;
    delta = delta_given + offset;
    z = z_given + offset;
    b = b_given + state;
    c = c_given + state;
  }

  template <int kColumns>
  __device__ __forceinline__ void copy_rows(Element* to, const Element* from, long long stride, int rows,
                                            int width) const {
    to += origin.row * kColumns;
    if constexpr (config::kFinal) {
      for_vectors<kColumns>(kHelperRows, width, [&](int row, int column) {
        copy_or_clear<16>(to + row * kColumns + column, from + (row < rows ? row * stride + column : 0), row < rows);
      });
    } else {
      for_vectors<kColumns>(rows, width, [&](int row, int column) {
        copy_16(to + row * kColumns + column, from + row * stride + column);
      });
    }
  }

  // rows: how many of this warp's rows of the tile lie within the chunk.
  __device__ __forceinline__ void start(int slot, int tile, int, int rows) {
    constexpr int kStride = kGroups * kN;
    const long long channels = origin.channels;
    const long long t = static_cast<long long>(tile) * kTileL;
    Element* to = landing + slot * (kStageFloats * 4 / static_cast<int>(sizeof(Element)));
    copy_rows<kPairsPerBlock>(to, x + t * channels, channels, rows, origin.columns);
    copy_rows<kPairsPerBlock>(to + kDelta, delta + t * channels, channels, rows, origin.columns);
    if constexpr (config::kGate) copy_rows<kPairsPerBlock>(to + kZ, z + t * channels, channels, rows, origin.columns);
    copy_rows<kN>(to + kB, b + t * kStride, kStride, rows, kN);
    copy_rows<kN>(to + kC, c + t * kStride, kStride, rows, kN);
    commit_copies();
  }

  // Waits for all tiles that were started but the last kPending.
  template <int kPending>
  __device__ __forceinline__ void wait_for_next(int, int) {
    wait_copies<kPending>();
  }
};

#ifndef KTUNE_CPU

// Whether this is the lane of the warp that acts for it, the same at every call.
__device__ __forceinline__ bool elected() {
  unsigned chosen;
  asm volatile(
      "{\n"
      ".reg .pred is_chosen;\n"
      "elect.sync _|is_chosen, 0xffffffff;\n"
      "selp.b32 %0, 1, 0, is_chosen;\n"
      "}\n"
      : "=r"(chosen));
  return chosen != 0;
}

// Zeros arrive for channels and rows beyond the tensor's. Tiles are started and waited for in their order, each with the
// barrier of its stage.
struct BulkCopies {
  static constexpr int kItem = static_cast<int>(sizeof(Element));
  static constexpr int kBytes = kHelperRows * ((config::kGate ? 3 : 2) * kPairsPerBlock + 2 * kN) * kItem;

  const TensorMap& x;
  const TensorMap& delta;
  const TensorMap& z;
  const TensorMap& b;
  const TensorMap& c;
  unsigned landing;     // of the first stage
  unsigned barriers;    // of this warp, one for each stage
  Origin origin;
  int slot = 0;         // of the tile that is waited for next
  unsigned phase = 0;

  __device__ BulkCopies(const TensorMap& x_given, const TensorMap& delta_given, const TensorMap& z_given,
                        const TensorMap& b_given, const TensorMap& c_given, Element* landing_given,
                        char* barriers_given, const Origin& origin_given)
      : x(x_given), delta(delta_given), z(z_given), b(b_given), c(c_given), origin(origin_given) {
    landing = static_cast<unsigned>(__cvta_generic_to_shared(landing_given));
    barriers = static_cast<unsigned>(__cvta_generic_to_shared(barriers_given)) + origin.row / kHelperRows * 8 * kStages;
    if (elected()) {
#pragma unroll
      for (int stage = 0; stage < kStages; ++stage) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barriers + 8 * stage) : "memory");
      }
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
  }

  // Of the map's rows of this batch, from `first` of row `step` on.
  __device__ __forceinline__ void copy_box(unsigned to, const TensorMap& map, int first, int step,
                                           unsigned barrier) const {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
        "l"(&map), "r"(first), "r"(step), "r"(origin.batch), "r"(barrier)
        : "memory");
  }

  __device__ __forceinline__ void copy_channels(unsigned to, int offset, const TensorMap& map, int step,
                                                unsigned barrier) const {
    copy_box(to + (offset + origin.row * kPairsPerBlock) * kItem, map, origin.channel, step, barrier);
  }

  __device__ __forceinline__ void copy_states(unsigned to, int offset, const TensorMap& map, int step,
                                              unsigned barrier) const {
    const unsigned at = to + (offset + origin.row * kN) * kItem;
    if constexpr (kGroups == 1) {
      copy_box(at, map, 0, step, barrier);
    } else {
      asm volatile(
          "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
          "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(at),
          "l"(&map), "r"(0), "r"(origin.group), "r"(step), "r"(origin.batch), "r"(barrier)
          : "memory");
    }
  }

  // Nothing beyond the last of `tiles`.
  __device__ __forceinline__ void start(int to_slot, int tile, int tiles, int) {
    if (tile >= tiles || !elected()) return;
    const unsigned barrier = barriers + 8 * to_slot;
    const unsigned to = landing + to_slot * (kStageFloats * 4);
    const int step = origin.step + tile * kTileL;
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "n"(kBytes) : "memory");
    copy_channels(to, 0, x, step, barrier);
    copy_channels(to, kDelta, delta, step, barrier);
    if constexpr (config::kGate) copy_channels(to, kZ, z, step, barrier);
    copy_states(to, kB, b, step, barrier);
    copy_states(to, kC, c, step, barrier);
  }

  template <int kPending>
  __device__ __forceinline__ void wait_for_next(int tile, int tiles) {
    if (tile < tiles) {
      asm volatile(
          "{\n"
          ".reg .pred done;\n"
          "again:\n"
          "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
          "@done bra.uni finished;\n"
          "bra.uni again;\n"
          "finished:\n"
          "}\n" ::"r"(barriers + 8 * slot),
          "r"(phase)
          : "memory");
    }
    slot = slot + 1 == kStages ? 0 : slot + 1;
    phase ^= slot == 0 ? 1u : 0u;
  }
};

#endif

template <bool kOfMaps>
struct CopiesOf {
  using Type = LaneCopies;
};
#ifndef KTUNE_CPU
template <>
struct CopiesOf<true> {
  using Type = BulkCopies;
};
#endif
using Copies = CopiesOf<kMaps>::Type;

}  // namespace scan
