// The program around a kernel: reads a job, runs its launches, writes the tensors back; tells faults on stdout.
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif
#include <unistd.h>

#include "runtime.h"

namespace ktune_cpu {

namespace {

[[noreturn]] void finish(int code, const char* text) {
  size_t left = strlen(text);
  while (left > 0) {
    const ssize_t wrote = write(STDOUT_FILENO, text, left);
    if (wrote <= 0) break;
    text += wrote;
    left -= static_cast<size_t>(wrote);
  }
  _exit(code);
}

[[noreturn]] void finish_saying(int code, const char* format, va_list arguments) {
  char text[2048];
  vsnprintf(text, sizeof text, format, arguments);
  finish(code, text);
}

void on_signal(int number, siginfo_t* info, void*) {
  static bool again = false;
  char thread[96] = "", place[160];
  if (again || current == nullptr) {
    signal(number, SIG_DFL);
    raise(number);
  }
  again = true;
  name_of(*current, thread);
  if (number == SIGFPE) fail(kExitCrash, "%s divided by zero", thread);
  if (in_stack_guard(info->si_addr)) fail(kExitCrash, "%s used more stack than a thread has here", thread);
  if (info->si_addr == nullptr) fail(kExitCrash, "%s accessed a null, a wild or a misaligned address", thread);
  fail(kExitCrash, "%s accessed %s", thread, describe(info->si_addr, place));
}

void catch_signals() {
  static char stack[64 << 10];
  stack_t alternative{};
  alternative.ss_sp = stack;
  alternative.ss_size = sizeof stack;
  sigaltstack(&alternative, nullptr);
  struct sigaction action{};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigaction(number, &action, nullptr);
}

[[noreturn]] void bad_job(const char* what) {
  char text[256];
  snprintf(text, sizeof text, "the job can't be read: %s\n", what);
  finish(kExitBadJob, text);
}

struct Job {
  FILE* text;
  FILE* data;
  size_t canary_bytes;
  Region* tensors[64];
  int tensor_count = 0;
  long long ends = 0;  // 0: every block; else so many at either end of the grid, and nothing is written back

  void read_header() {
    int order;
    unsigned long long seed, reserve, gap, canary;
    if (fscanf(text, "schedule %d %llu reserve %llu gap %llu canary %llu ends %lld", &order, &seed, &reserve, &gap,
               &canary, &ends) != 6) {
      bad_job("its first line");
    }
    schedule = {static_cast<Order>(order), seed};
    canary_bytes = canary;
    reserve_memory(reserve, gap);
  }

  void read_tensor() {
    char name[64];
    unsigned long long bytes, item_bytes;
    int filled;
    if (tensor_count == 64 || fscanf(text, " %63s %llu %llu %d", name, &bytes, &item_bytes, &filled) != 4) {
      bad_job("a tensor");
    }
    Region* region = add_tensor(name, bytes, item_bytes, canary_bytes);
    tensors[tensor_count++] = region;
    if (filled == 0) return;
    const size_t all = bytes + 2 * canary_bytes;
    if (fread(region->data - canary_bytes, 1, all, data) != all) bad_job("the data end early");
  }

  void write_back() {
    rewind(data);
    for (int i = 0; i < tensor_count; ++i) {
      // with AddressSanitizer the canaries can't have changed, and may not be read
      const size_t canary = kAddress ? 0 : canary_bytes;
      if (kAddress) fseek(data, static_cast<long>(canary_bytes), SEEK_CUR);
      const size_t all = tensors[i]->bytes + 2 * canary;
      if (fwrite(tensors[i]->data - canary, 1, all, data) != all) bad_job("no room for the results");
      if (kAddress) fseek(data, static_cast<long>(canary_bytes), SEEK_CUR);
    }
    if (fflush(data) != 0) bad_job("no room for the results");
  }

  void read_launch();
};

const Kernel& find_kernel(const char* name) {
  for (int i = 0; i < kernel_count; ++i) {
    if (strcmp(kernels[i].name, name) == 0) return kernels[i];
  }
  fail(kExitRefused, "the source has no kernel %s", name);
}

void run_launch(const Launch& launch, long long ends) {
  gridDim = launch.grid;
  blockDim = launch.block;
  thread_count = static_cast<int>(launch.block.x * launch.block.y * launch.block.z);
  if (thread_count < 1 || thread_count > kMaxThreads) {
    fail(kExitRefused, "a block has 1 to %d threads, %s asks for %d", kMaxThreads, launch.kernel->name, thread_count);
  }
  if (launch.grid.x > 0x7fffffffu || launch.grid.y > 65535 || launch.grid.z > 65535) {
    fail(kExitRefused, "a grid is at most 2147483647 x 65535 x 65535 blocks, %s asks for %u x %u x %u",
         launch.kernel->name, launch.grid.x, launch.grid.y, launch.grid.z);
  }
  prepare_threads(thread_count);
  if (kRaces) races::begin_launch();
  const long long blocks = static_cast<long long>(launch.grid.x) * launch.grid.y * launch.grid.z;
  const long long start = schedule.order == Order::random ? static_cast<long long>(random_bits() >> 1) % blocks : 0;
  for (long long i = 0; i < blocks; ++i) {
    if (ends > 0 && i == ends && blocks > 2 * ends) i = blocks - ends;
    const long long number = schedule.order == Order::newest_first ? blocks - 1 - i : (i + start) % blocks;
    blockIdx.x = static_cast<unsigned>(number % launch.grid.x);
    blockIdx.y = static_cast<unsigned>(number / launch.grid.x % launch.grid.y);
    blockIdx.z = static_cast<unsigned>(number / launch.grid.x / launch.grid.y);
    begin_block_memory(launch.smem_bytes);
    run_block(launch);
    end_block_memory();
  }
}

void Job::read_launch() {
  char name[128], kind;
  Launch launch{};
  unsigned long long smem;
  int count;
  if (fscanf(text, " %127s %u %u %u %u %u %u %llu %d", name, &launch.grid.x, &launch.grid.y, &launch.grid.z,
             &launch.block.x, &launch.block.y, &launch.block.z, &smem, &count) != 9 || count > 64) {
    bad_job("a launch");
  }
  launch.kernel = &find_kernel(name);
  launch.smem_bytes = smem;
  const char* kinds = launch.kernel->kinds;
  if (static_cast<int>(strlen(kinds)) != count) {
    fail(kExitRefused, "kernel %s takes %zu arguments, the plan passes %d", name, strlen(kinds), count);
  }
  uint64_t values[64];
  void* arguments[64];
  for (int i = 0; i < count; ++i) {
    unsigned long long bits;
    if (fscanf(text, " %c %llu", &kind, &bits) != 2) bad_job("an argument");
    // A kernel may take the tensor's pointer, when compiled for the CPU, where a GPU passes a tensor map.
    if (kind == 'm' && kinds[i] != 'p') {
      fail(kExitNotExecutable, "argument %d of kernel %s is a tensor map", i, name);
    }
    if (kind == 'm') kind = 'p';
    if (kind != kinds[i]) {
      fail(kExitRefused,
           "argument %d of kernel %s is of kind '%c', the plan passes '%c' (pointer, int32, uint32, long 64, float)", i,
           name, kinds[i], kind);
    }
    if (kind == 'p' && bits >= static_cast<unsigned long long>(tensor_count)) bad_job("a tensor's number");
    values[i] = kind == 'p' ? reinterpret_cast<uint64_t>(tensors[bits]->data) : bits;
    arguments[i] = &values[i];
  }
  launch.arguments = arguments;
  run_launch(launch, ends);
}

}  // namespace

const char* name_of(const Thread& thread, char (&text)[96]) {
  snprintf(text, sizeof text, "thread (%u,%u,%u) of block (%u,%u,%u)", thread.index.x, thread.index.y, thread.index.z,
           blockIdx.x, blockIdx.y, blockIdx.z);
  return text;
}

void fault(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  finish_saying(kExitFault, format, arguments);
}

void fail(int code, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  finish_saying(code, format, arguments);
}

void not_executable(const char* what) { finish(kExitNotExecutable, what); }

void failed_assertion(const char* condition, const char* file, int line) {
  char text[96];
  fault("assertion %s failed at %s:%d in %s", condition, file, line, name_of(*current, text));
}

void note_atomic(const void* address, size_t bytes, const void* place) {
  if (kRaces) races::note(address, bytes, true, true, reinterpret_cast<uintptr_t>(place));
}

int run_job(const char* text, const char* data) {
  Job job{fopen(text, "r"), fopen(data, "r+"), 0, {}};
  if (job.text == nullptr || job.data == nullptr) bad_job("no such file");
  job.read_header();
  char word[16];
  bool launched = false;
  while (fscanf(job.text, " %15s", word) == 1) {
    if (strcmp(word, "tensor") == 0) {
      job.read_tensor();
    } else if (strcmp(word, "launch") == 0) {
      if (!launched) finish_tensors();
      launched = true;
      job.read_launch();
    } else {
      bad_job(word);
    }
  }
  if (job.ends == 0) job.write_back();
  return 0;
}

}  // namespace ktune_cpu

#ifdef KTUNE_ADDRESS
extern "C" void* __asan_get_report_address();
extern "C" int __asan_get_report_access_type();
// Called by AddressSanitizer before its own report.
extern "C" void __asan_on_error() {
  using namespace ktune_cpu;
  if (current == nullptr) return;
  char thread[96], place[160], text[400];
  snprintf(text, sizeof text, "%s %s %s", name_of(*current, thread),
           __asan_get_report_access_type() ? "writes" : "reads", describe(__asan_get_report_address(), place));
  if (write(STDOUT_FILENO, text, strlen(text)) < 0) return;
}
#endif

int main(int count, char** arguments) {
  if (count != 3) return ktune_cpu::kExitBadJob;
#ifdef __linux__
  // a kernel that never ends must not outlive the process that waits for it
  prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
#ifndef KTUNE_ADDRESS
  ktune_cpu::catch_signals();
#endif
  return ktune_cpu::run_job(arguments[1], arguments[2]);
}
