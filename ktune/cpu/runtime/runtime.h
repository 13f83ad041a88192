// What the parts of the runtime share: threads as fibers, warps, the block that runs now, and its memory.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "../cuda_on_cpu.h"

// Elsewhere ucontext switches threads, which takes about ten times as long.
#if defined(__x86_64__) && !defined(KTUNE_UCONTEXT)
#define KTUNE_OWN_SWITCH 1
#else
#include <ucontext.h>
#endif

namespace ktune_cpu {

#ifdef KTUNE_RACES
constexpr bool kRaces = true;
#else
constexpr bool kRaces = false;
#endif
#ifdef KTUNE_ADDRESS
constexpr bool kAddress = true;
#else
constexpr bool kAddress = false;
#endif

// Exit codes that process.py knows.
constexpr int kExitFault = 70;
constexpr int kExitNotExecutable = 71;
constexpr int kExitBadJob = 72;
constexpr int kExitRefused = 73;
constexpr int kExitDeadlock = 74;
constexpr int kExitCrash = 76;

constexpr int kMaxThreads = 1024;
constexpr int kLanes = 32;
constexpr int kBarriers = 16;

enum class State : uint8_t { ready, at_warp, at_block, done };
enum class Order : uint8_t { oldest_first, newest_first, random };

struct Copy {
  void* to;
  const void* from;
  int bytes;
  int valid_bytes;
  unsigned group;
  uintptr_t place;  // the instruction that started it
};

struct Warp;

struct Thread {
  void* stack_pointer;
  char* stack;  // its lowest usable byte
#if !defined(KTUNE_OWN_SWITCH)
  ucontext_t context;
#endif
  void* sanitizer_stack;
  uint3 index;
  int number;
  int lane;
  Warp* warp;
  State state;
  Site site;
  unsigned mask;
  uint64_t value;
  uint64_t result;
  int argument;
  int width;
  int barrier;
  Copy* copies;
  int copy_count;
  int copy_room;
  unsigned copy_group;
};

// Lanes on their way to one exchange: the same operation, place and mask.
struct Meeting {
  Exchange exchange;
  unsigned mask;
  unsigned arrived;
  Site site;
};

struct Warp {
  Thread* first;
  unsigned gone;  // lanes that have exited or never were
  int meeting_count;
  Meeting meetings[kLanes];
};

struct Schedule {
  Order order;
  uint64_t seed;
};

struct Launch {
  const Kernel* kernel;
  dim3 grid, block;
  size_t smem_bytes;
  void* const* arguments;
};

extern Thread* current;
extern Thread threads[kMaxThreads];
extern int thread_count;
extern Schedule schedule;

extern int live_threads;  // of the block, that have not exited

uint64_t random_bits();
// Ends the process with a sentence on stdout and one of the codes above.
[[noreturn]] void fail(int code, const char* format, ...);
bool same_site(const Site& a, const Site& b);
// Runs every thread of the block whose blockIdx is set.
void run_block(const Launch& launch);
void prepare_threads(int count);
// The current thread can't go on: others run until it is made ready.
void give_way();
void make_ready(Thread& thread);
// Meetings (meetings.cpp): none at the start of a block; an exited thread is waited for no longer.
void begin_meetings();
void leave_meetings(const Thread& thread);
// "thread (1,0,0) of block (2,0,0)".
const char* name_of(const Thread& thread, char (&text)[96]);
// Whether an address lies just below the current thread's stack.
bool in_stack_guard(const void* address);

struct Region {
  char name[64];
  char* data;
  size_t bytes;
  size_t item_bytes;
  bool shared;
};

// Memory (memory.cpp): every tensor and the shared memory between gaps that may not be touched.
void reserve_memory(size_t bytes, size_t gap_bytes);
Region* add_tensor(const char* name, size_t bytes, size_t item_bytes, size_t canary_bytes);
void finish_tensors();
void begin_block_memory(size_t smem_bytes);
void end_block_memory();
const char* describe(const void* address, char (&text)[160]);
bool is_shared(const void* address);
// Whether AddressSanitizer would let these bytes be accessed; always, without it.
bool is_allowed(const void* address, size_t bytes);
extern char* memory_base;
extern size_t memory_bytes;

// Races (races.cpp): told of what orders accesses.
namespace races {
void begin_launch();
void begin_block();
void block_met();
// Threads that only arrive at a named barrier, and those that went on together from it.
void thread_arrived(int barrier);
void threads_met(const bool (&met)[kMaxThreads], int barrier);
void warp_met(const Warp& warp, unsigned lanes);
void thread_left(const Thread& thread);
void note(const void* address, size_t bytes, bool write, bool atomic, uintptr_t place);
}  // namespace races

}  // namespace ktune_cpu
