// Threads as fibers: the switch between them, and who runs next.
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "runtime.h"

#ifdef KTUNE_ADDRESS
extern "C" void __sanitizer_start_switch_fiber(void** save, const void* bottom, size_t size);
extern "C" void __sanitizer_finish_switch_fiber(void* save, const void** bottom, size_t* size);
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace ktune_cpu {

#ifdef KTUNE_ADDRESS
constexpr size_t kStackBytes = 512 << 10;
#else
constexpr size_t kStackBytes = 128 << 10;
#endif
constexpr size_t kGuardBytes = 64 << 10;

Thread* current;
Thread threads[kMaxThreads];
int thread_count;
Schedule schedule;
int live_threads;

namespace {

Warp warps[kMaxThreads / kLanes];
Thread main_thread;
const Launch* running;
int prepared;
char* stacks;
const void* main_stack;
size_t main_stack_bytes;
uint64_t random_state;

// Threads that can run, in the order in which they became able to.
struct Ready {
  Thread* of[kMaxThreads];
  int first = 0;
  int count = 0;

  void add(Thread& thread) {
    thread.state = State::ready;
    of[(first + count++) % kMaxThreads] = &thread;
  }
  Thread* take() {
    int at = 0;
    if (schedule.order == Order::newest_first) at = count - 1;
    if (schedule.order == Order::random) at = static_cast<int>(random_bits() % static_cast<uint64_t>(count));
    Thread* next = of[(first + at) % kMaxThreads];
    if (schedule.order != Order::newest_first) {
      of[(first + at) % kMaxThreads] = of[first];
      first = (first + 1) % kMaxThreads;
    }
    --count;
    return next;
  }
} ready;

}  // namespace

// Saves what the ABI asks a function to keep, exchanges stacks, and returns on the other one.
#if defined(KTUNE_OWN_SWITCH)
extern "C" void ktune_cpu_switch(void** save, void* load);
asm(R"(
.text
.globl ktune_cpu_switch
.type ktune_cpu_switch, @function
ktune_cpu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size ktune_cpu_switch, .-ktune_cpu_switch
)");
#endif

namespace {

void switch_stacks(Thread& from, Thread& to) {
#ifdef KTUNE_ADDRESS
  const bool home = &to == &main_thread;
  __sanitizer_start_switch_fiber(from.state == State::done ? nullptr : &from.sanitizer_stack,
                                 home ? main_stack : to.stack, home ? main_stack_bytes : kStackBytes);
#endif
#if defined(KTUNE_OWN_SWITCH)
  ktune_cpu_switch(&from.stack_pointer, to.stack_pointer);
#else
  swapcontext(&from.context, &to.context);
#endif
#ifdef KTUNE_ADDRESS
  __sanitizer_finish_switch_fiber(from.sanitizer_stack, nullptr, nullptr);
#endif
}

void run(Thread& next) {
  Thread& from = *current;
  if (&next == &from) return;
  current = &next;
  threadIdx = next.index;
  switch_stacks(from, next);
}

// Appends where the threads wait that wait as `like` does.
void describe_group(char* text, size_t room, const Thread& like) {
  const Thread* first = nullptr;
  int count = 0;
  for (int i = 0; i < thread_count; ++i) {
    const Thread& thread = threads[i];
    if (thread.state != like.state || !same_site(thread.site, like.site) || thread.mask != like.mask) continue;
    if (first == nullptr) first = &thread;
    ++count;
  }
  char mask[32] = "";
  if (like.state == State::at_warp) snprintf(mask, sizeof mask, " with mask 0x%08x", like.mask);
  snprintf(text, room, "; thread (%u,%u,%u)%s%.0d%s in %s at %s:%d%s", first->index.x, first->index.y, first->index.z,
           count > 1 ? " and " : "", count > 1 ? count - 1 : 0, count > 1 ? " more wait" : " waits",
           like.site.operation, like.site.file, like.site.line, mask);
}

[[noreturn]] void report_deadlock() {
  constexpr int kGroupsTold = 4;
  char text[1600] = "";
  int groups = 0, exited = 0;
  for (int i = 0; i < thread_count; ++i) {
    const Thread& thread = threads[i];
    exited += thread.state == State::done;
    bool told = thread.state == State::done;
    for (int j = 0; j < i && !told; ++j) {
      told = threads[j].state == thread.state && same_site(threads[j].site, thread.site) &&
             threads[j].mask == thread.mask;
    }
    if (told || ++groups > kGroupsTold) continue;
    describe_group(text + strlen(text), sizeof text - strlen(text), thread);
  }
  fail(kExitDeadlock, "deadlock in block (%u,%u,%u)%s%s; %d of %d threads have exited", blockIdx.x, blockIdx.y,
       blockIdx.z, text, groups > kGroupsTold ? "; and others" : "", exited, thread_count);
}

void thread_main() {
#ifdef KTUNE_ADDRESS
  const void* bottom;
  size_t bytes;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
  if (main_stack == nullptr) {
    main_stack = bottom;
    main_stack_bytes = bytes;
  }
#endif
  running->kernel->invoke(running->arguments);
  current->state = State::done;
  --live_threads;
  leave_meetings(*current);
  give_way();
  __builtin_unreachable();
}

void begin_thread(Thread& thread, int number) {
  thread.number = number;
  thread.index.x = static_cast<unsigned>(number) % blockDim.x;
  thread.index.y = static_cast<unsigned>(number) / blockDim.x % blockDim.y;
  thread.index.z = static_cast<unsigned>(number) / blockDim.x / blockDim.y;
  thread.lane = number % kLanes;
  thread.warp = &warps[number / kLanes];
  thread.copy_count = 0;
  thread.copy_group = 0;
  thread.mask = 0;
#if defined(KTUNE_OWN_SWITCH)
  void** top = reinterpret_cast<void**>(thread.stack + kStackBytes);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&thread_main);
  thread.stack_pointer = top - 6;
#else
  getcontext(&thread.context);
  thread.context.uc_stack.ss_sp = thread.stack;
  thread.context.uc_stack.ss_size = kStackBytes;
  thread.context.uc_link = nullptr;
  makecontext(&thread.context, thread_main, 0);
#endif
}

}  // namespace

void give_way() {
  if (ready.count > 0) {
    run(*ready.take());
    return;
  }
  if (live_threads > 0) report_deadlock();
  run(main_thread);
}

void make_ready(Thread& thread) { ready.add(thread); }

void prepare_threads(int count) {
  if (count <= prepared) return;
  const size_t each = kStackBytes + kGuardBytes;
  if (stacks == nullptr) {
    void* mapped = mmap(nullptr, kMaxThreads * each, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) fault("no memory for the stacks of %d threads", kMaxThreads);
    stacks = static_cast<char*>(mapped);
  }
  for (; prepared < count; ++prepared) {
    threads[prepared].stack = stacks + static_cast<size_t>(prepared) * each + kGuardBytes;
    mprotect(threads[prepared].stack, kStackBytes, PROT_READ | PROT_WRITE);
  }
}

bool in_stack_guard(const void* address) {
  if (current == nullptr || current == &main_thread) return false;
  const char* at = static_cast<const char*>(address);
  return at < current->stack && at >= current->stack - kGuardBytes;
}

void run_block(const Launch& launch) {
  running = &launch;
  live_threads = thread_count;
  ready = {};
  begin_meetings();
  for (int i = 0; i < thread_count; ++i) {
    if (i % kLanes == 0) {
      const int left = thread_count - i;
      Warp& warp = warps[i / kLanes];
      warp.first = &threads[i];
      warp.gone = left >= kLanes ? 0 : ~0u << left;
      warp.meeting_count = 0;
    }
    begin_thread(threads[i], i);
    ready.add(threads[i]);
  }
  if (kRaces) races::begin_block();
  main_thread.state = State::ready;
  current = &main_thread;
  give_way();
  current = nullptr;
}

long long clock() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<long long>(now.tv_sec) * 1000000000LL + now.tv_nsec;
}

uint64_t random_bits() {
  if (random_state == 0) random_state = schedule.seed * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u;
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}

}  // namespace ktune_cpu
