// What the two halves of the piped scan's blocks agree on: the layout of shared memory, and their barriers.
//
// A stage in fp32: x [tile, pairs], delta [tile, pairs], where it gates z [tile, pairs], b [tile, N], c [tile, N]; then,
// where elements are narrower, the same as they land.
#pragma once

#include "options.cuh"

namespace scan {

// A warp's lanes are kWarpColumns channels, of one part or two, and helper warps sum a pair's parts, which lie in several
// warps; or a pair's parts are lanes of one warp, which sums them itself.
constexpr bool kHelpersSum = config::kReduction == config::Reduction::shared;
constexpr int kWarpColumns = kHelpersSum ? (kPairsPerBlock < 32 ? kPairsPerBlock : 32) : kPairsPerWarp;
// Of a warp whose parts the helpers sum.
constexpr int kPartsPerWarp = 32 / kWarpColumns;
constexpr int kTileL = config::kTileL;
constexpr int kStages = config::kStages;
constexpr int kAhead = config::kExpAhead;
constexpr int kHelpers = config::kHelpers;
constexpr int kWarps = kBlockSize / 32;
constexpr int kThreads = kBlockSize + 32 * kHelpers;
// Steps of x and delta that one load brings, and of y that one store takes.
constexpr int kSteps = 4;
// How many steps before its exponentials x and delta are loaded, in whole kSteps, and before its use B and C.
constexpr int kInputAhead = kAhead < kSteps ? kSteps : 2 * kSteps;
constexpr int kRowAhead = config::kRowAhead;
constexpr int kRing = 8;
constexpr int kBody = config::kUnroll * kSteps;
// Where a stage's arrays begin, in numbers.
constexpr int kDelta = kTileL * kPairsPerBlock;
constexpr int kZ = 2 * kDelta;
constexpr int kB = (config::kGate ? 3 : 2) * kDelta;
constexpr int kC = kB + kTileL * kN;
constexpr int kTile = kC + kTileL * kN;
constexpr bool kWidens = sizeof(Element) < sizeof(float);
constexpr int kLandingFloats = kWidens ? kTile * static_cast<int>(sizeof(Element)) / 4 : 0;
constexpr int kStageFloats = kTile + kLandingFloats;
// Elements of one 16-byte copy.
constexpr int kVector = 16 / static_cast<int>(sizeof(Element));
// Sums of one tile: [warp][tile / kSteps][lane][kSteps].
constexpr int kSumFloats = kHelpersSum ? kWarps * kTileL * 32 : 0;
constexpr int kHelperRows = kTileL / kHelpers;

static_assert(kTileL % kBody == 0 && kBody % kRing == 0, "a tile holds whole bodies, a body whole turns of the rings");
static_assert(kHelperRows % kSteps == 0, "a helper warp sums whole groups of steps");
static_assert(kPairsPerBlock % 16 == 0 && 32 % kWarpColumns == 0, "a warp's lanes are the same channels once or more");
static_assert(kN % kVector == 0, "rows of B and C are whole 16-byte vectors");
static_assert(kN % kThreadsPerPair == 0, "parts are whole states");
static_assert(!kHelpersSum || (kWarps * kPartsPerWarp % kThreadsPerPair == 0 && kThreadsPerPair % kPartsPerWarp == 0),
              "warps hold all parts of their channels");
static_assert(!kHelpersSum || kHelperRows % (kSteps * kPartsPerWarp) == 0, "a helper's lanes sum as many groups at once");
static_assert(kWarpColumns % 4 == 0, "channels that lie side by side are 16-byte vectors");
static_assert(kHelpersSum || kBody % kGroup == 0, "a body holds whole groups of the reduction");
static_assert(config::kCopies != config::Copies::bulk || kHelperRows * kN * sizeof(Element) % 128 == 0,
              "a box begins at a multiple of 128 bytes");
static_assert(kStages >= 2, "a tile lands while another is computed");

// Where the two halves of the block wait for each other. Both come here for the same reasons in the same order: the first
// and the second tile are ready, the first was computed, the third is ready, the second was computed, and so on.
__device__ __forceinline__ void meet() { asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory"); }

}  // namespace scan
