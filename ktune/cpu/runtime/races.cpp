// A race detector that knows CUDA's order: what -fsanitize=thread reports of each access is judged here.
//
// Two accesses to the same bytes, one of them a write, race unless a barrier orders them. In one launch blocks are not
// ordered at all; in a block __syncthreads orders everything before it, a named barrier what its threads did before
// those that wait there go on, __syncwarp what its lanes did; shuffles and votes order nothing. A thread that left
// without a barrier that others waited for is not ordered before them.
// Method: Flanagan and Freund, "FastTrack: Efficient and Precise Dynamic Race Detection" (2009), with block-wide
// barriers as epochs and a clock per thread only between them.
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime.h"

namespace ktune_cpu::races {

namespace {

struct Access {
  uint32_t epoch = 0;  // 0: none
  uint32_t clock = 0;
  uint32_t place = 0;  // the instruction; programs are not position-independent
  uint16_t thread = 0;
  uint8_t bytes = 0;   // which of the word's four
  bool atomic = false;
};

// The last write of a word, and the last reads since: two of one warp, one of another.
struct Cell {
  Access write;
  Access reads[3];
};

constexpr size_t kWord = 4;

Cell* cells;
uint32_t epoch;
uint32_t block_begin;
uint32_t launch_begin;
bool used_atomics;    // in this block: it may have made an order of its own with others
bool across_warps;    // in this epoch: a barrier of some threads has met
uint32_t left_in[kMaxThreads];
// known[a][b]: the clock of b up to which a has seen its accesses; known[a][a] is a's own.
uint32_t known[kMaxThreads][kMaxThreads];
// What those that only arrive at a named barrier hand to those that wait there.
uint32_t released[kBarriers][kMaxThreads];

Cell* cell_of(const char* address) { return cells + (address - memory_base) / static_cast<ptrdiff_t>(kWord); }

bool is_ordered(const Access& before, int thread, bool in_shared) {
  if (before.epoch < launch_begin) return true;
  if (before.epoch < block_begin) return in_shared || used_atomics;
  if (before.thread == thread) return true;
  if (before.epoch < epoch) return left_in[before.thread] != before.epoch;
  return known[thread][before.thread] >= before.clock;
}

// Lets each thread of `met`, whose numbers are in [first, end), know what every other of them knew, and what `given`
// holds, if there is one.
void join(const bool* met, int first, int end, const uint32_t* given = nullptr) {
  static uint32_t joined[kMaxThreads];
  const int from = across_warps ? 0 : first;
  const int to = across_warps ? thread_count : end;
  for (int other = from; other < to; ++other) {
    joined[other] = given == nullptr ? 0 : given[other];
    for (int thread = first; thread < end; ++thread) {
      if (met[thread] && known[thread][other] > joined[other]) joined[other] = known[thread][other];
    }
  }
  for (int thread = first; thread < end; ++thread) {
    if (!met[thread]) continue;
    for (int other = from; other < to; ++other) known[thread][other] = joined[other];
    ++known[thread][thread];
  }
}

const char* kind_of_access(bool write, bool atomic) { return atomic ? "atomic access" : write ? "write" : "read"; }

[[noreturn]] void report(const char* address, const Access& before, bool before_writes, const Access& now,
                         bool writes) {
  char place[160], thread[96];
  const uint3 index = threads[before.thread].index;
  const bool same_block = before.epoch >= block_begin;
  char other[96];
  if (same_block) {
    snprintf(other, sizeof other, "thread (%u,%u,%u)", index.x, index.y, index.z);
  } else {
    snprintf(other, sizeof other, "a thread of another block");
  }
  fault("race on %s: %s by %s at {pc:0x%x}, after a %s by %s at {pc:0x%x} with no barrier between them",
        describe(address, place), kind_of_access(writes, now.atomic), name_of(*current, thread), now.place,
        kind_of_access(before_writes, before.atomic), other, before.place);
}

void keep_read(Cell& cell, const Access& now) {
  Access* reads = cell.reads;
  const int warp = now.thread / kLanes;
  if (reads[0].epoch != 0 && reads[0].thread != now.thread) {
    if (reads[0].thread / kLanes != warp) {
      reads[2] = reads[0];
    } else {
      reads[1] = reads[0];
    }
  }
  reads[0] = now;
}

void look(char* address, uint8_t bytes, bool write, bool atomic, uintptr_t place) {
  Cell& cell = *cell_of(address);
  const auto number = static_cast<uint16_t>(current->number);
  const Access now{epoch, known[number][number], static_cast<uint32_t>(place), number, bytes, atomic};
  const bool in_shared = is_shared(address);
  auto conflicts = [&](const Access& before) {
    return before.epoch != 0 && (before.bytes & bytes) != 0 && !(atomic && before.atomic) &&
           !is_ordered(before, number, in_shared);
  };
  if (conflicts(cell.write)) report(address, cell.write, true, now, write);
  if (!write) {
    keep_read(cell, now);
    return;
  }
  for (const Access& read : cell.reads) {
    if (conflicts(read)) report(address, read, false, now, true);
  }
  cell.write = now;
  for (Access& read : cell.reads) read = {};
}

}  // namespace

void begin_launch() {
  if (cells == nullptr) {
    const size_t bytes = (memory_bytes / kWord + 1) * sizeof(Cell);
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) fault("no memory to look for races in %zu bytes", memory_bytes);
    cells = static_cast<Cell*>(mapped);
  }
  launch_begin = ++epoch;
}

void begin_block() {
  block_begin = ++epoch;
  used_atomics = false;
  across_warps = false;
  for (int i = 0; i < thread_count; ++i) {
    left_in[i] = 0;
    ++known[i][i];
  }
  memset(released, 0, sizeof released);
}

void block_met() {
  ++epoch;
  across_warps = false;
}

void thread_arrived(int barrier) {
  across_warps = true;
  uint32_t* mine = known[current->number];
  for (int other = 0; other < thread_count; ++other) {
    if (released[barrier][other] < mine[other]) released[barrier][other] = mine[other];
  }
  ++mine[current->number];
}

void threads_met(const bool (&met)[kMaxThreads], int barrier) {
  across_warps = true;
  join(met, 0, thread_count, released[barrier]);
  memset(released[barrier], 0, sizeof released[barrier]);
}

void warp_met(const Warp& warp, unsigned lanes) {
  static bool met[kMaxThreads];
  const int first = warp.first->number;
  const int end = first + kLanes < thread_count ? first + kLanes : thread_count;
  for (int i = first; i < end; ++i) met[i] = (lanes >> (i - first) & 1) != 0;
  join(met, first, end);
}

void thread_left(const Thread& thread) { left_in[thread.number] = epoch; }

void note(const void* address, size_t bytes, bool write, bool atomic, uintptr_t place) {
  if (current == nullptr || bytes == 0) return;
  char* at = const_cast<char*>(static_cast<const char*>(address));
  if (at < memory_base || at + bytes > memory_base + memory_bytes) return;
  used_atomics |= atomic;
  char* const end = at + bytes;
  while (at < end) {
    const size_t within = reinterpret_cast<uintptr_t>(at) % kWord;
    const size_t left = static_cast<size_t>(end - at);
    const size_t here = kWord - within < left ? kWord - within : left;
    look(at, static_cast<uint8_t>(((1u << here) - 1) << within), write, atomic, place);
    at += here;
  }
}

}  // namespace ktune_cpu::races

// What -fsanitize=thread calls, in place of its own runtime.
#define KTUNE_PLACE_ reinterpret_cast<uintptr_t>(__builtin_return_address(0))
#define KTUNE_ACCESS_(name, bytes, write) \
  extern "C" void name(void* address) { ktune_cpu::races::note(address, bytes, write, false, KTUNE_PLACE_); }
#define KTUNE_ACCESSES_(bytes)                           \
  KTUNE_ACCESS_(__tsan_read##bytes, bytes, false)            \
  KTUNE_ACCESS_(__tsan_write##bytes, bytes, true)            \
  KTUNE_ACCESS_(__tsan_unaligned_read##bytes, bytes, false)  \
  KTUNE_ACCESS_(__tsan_unaligned_write##bytes, bytes, true)  \
  KTUNE_ACCESS_(__tsan_volatile_read##bytes, bytes, false)   \
  KTUNE_ACCESS_(__tsan_volatile_write##bytes, bytes, true)
KTUNE_ACCESSES_(1)
KTUNE_ACCESSES_(2)
KTUNE_ACCESSES_(4)
KTUNE_ACCESSES_(8)
KTUNE_ACCESSES_(16)

extern "C" void __tsan_read_range(void* address, unsigned long bytes) {
  ktune_cpu::races::note(address, bytes, false, false, KTUNE_PLACE_);
}
extern "C" void __tsan_write_range(void* address, unsigned long bytes) {
  ktune_cpu::races::note(address, bytes, true, false, KTUNE_PLACE_);
}
extern "C" void* __tsan_memcpy(void* to, const void* from, unsigned long bytes) {
  ktune_cpu::races::note(from, bytes, false, false, KTUNE_PLACE_);
  ktune_cpu::races::note(to, bytes, true, false, KTUNE_PLACE_);
  return memcpy(to, from, bytes);
}
extern "C" void* __tsan_memmove(void* to, const void* from, unsigned long bytes) {
  ktune_cpu::races::note(from, bytes, false, false, KTUNE_PLACE_);
  ktune_cpu::races::note(to, bytes, true, false, KTUNE_PLACE_);
  return memmove(to, from, bytes);
}
extern "C" void* __tsan_memset(void* to, int value, unsigned long bytes) {
  ktune_cpu::races::note(to, bytes, true, false, KTUNE_PLACE_);
  return memset(to, value, bytes);
}
extern "C" void __tsan_init() {}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
extern "C" void __tsan_vptr_update(void**, void*) {}
extern "C" void __tsan_vptr_read(void**) {}
