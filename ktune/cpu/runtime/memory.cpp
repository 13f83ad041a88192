// The memory of a launch: tensors and shared memory, each between gaps that no kernel may touch.
//
// One reservation holds everything. Around a tensor lie its canaries, then pages without access. With
// AddressSanitizer all but the data is poisoned, so that the first byte outside is reported.
#include <stdlib.h>
#include <sys/mman.h>

#include "runtime.h"

#ifdef KTUNE_ADDRESS
extern "C" void __asan_poison_memory_region(void const volatile* address, size_t bytes);
extern "C" void __asan_unpoison_memory_region(void const volatile* address, size_t bytes);
extern "C" void* __asan_region_is_poisoned(void* address, size_t bytes);
#endif

namespace ktune_cpu {

char* memory_base;
size_t memory_bytes;

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kSharedLimit = 232448;  // what a block may have on Hopper
constexpr size_t kSharedRoom = 1 << 20;
constexpr size_t kSharedGap = 256;
constexpr size_t kSharedAlignment = 1024;
constexpr unsigned char kCanary = 0xA5;
constexpr unsigned char kPoison = 0xFF;
constexpr int kMaxRegions = 64;

Region tensors[kMaxRegions];
int tensor_count;
Region shared[kMaxRegions];
const char* shared_keys[kMaxRegions];
int shared_count;
char* shared_base;
char* shared_next;
size_t shared_used;
size_t used;
size_t gap;  // between tensors, without access

size_t rounded(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

char* take(size_t bytes) {
  if (used + bytes > memory_bytes) fail(kExitBadJob, "the tensors need more than the %zu bytes reserved", memory_bytes);
  char* at = memory_base + used;
  used += bytes;
  return at;
}

void allow(char* data, size_t bytes) {
#ifdef KTUNE_ADDRESS
  __asan_unpoison_memory_region(data, bytes);
#else
  (void)data, (void)bytes;
#endif
}

void forbid(char* data, size_t bytes) {
#ifdef KTUNE_ADDRESS
  __asan_poison_memory_region(data, bytes);
#else
  (void)data, (void)bytes;
#endif
}

// Shared memory of `bytes`, with a gap after it; the gap before is the one of the allocation before.
Region& place_shared(const char* name, size_t bytes, size_t alignment) {
  if (shared_count == kMaxRegions) fault("a block may have at most %d shared arrays", kMaxRegions);
  Region& region = shared[shared_count++];
  snprintf(region.name, sizeof region.name, "%s", name);
  region.data = shared_base + rounded(static_cast<size_t>(shared_next - shared_base), alignment);
  region.bytes = bytes;
  region.item_bytes = 1;
  region.shared = true;
  shared_used += bytes;
  if (shared_used > kSharedLimit) {
    fail(kExitRefused, "a block has at most %zu bytes of shared memory, this one asks for %zu", kSharedLimit,
         shared_used);
  }
  allow(shared_next, static_cast<size_t>(region.data - shared_next) + bytes + kSharedGap);
  memset(shared_next, kCanary, static_cast<size_t>(region.data - shared_next));
  memset(region.data, kPoison, bytes);
  memset(region.data + bytes, kCanary, kSharedGap);
  forbid(shared_next, static_cast<size_t>(region.data - shared_next));
  forbid(region.data + bytes, kSharedGap);
  shared_next = region.data + bytes + kSharedGap;
  return region;
}

void check_gap(const char* from, const char* to) {
  for (const char* at = from; at < to; ++at) {
    if (static_cast<unsigned char>(*at) == kCanary) continue;
    char text[160];
    fault("block (%u,%u,%u) wrote outside of shared memory: %s was overwritten", blockIdx.x, blockIdx.y, blockIdx.z,
          describe(at, text));
  }
}

const Region* nearest(const char* address) {
  const Region* found = nullptr;
  size_t least = ~size_t{0};
  auto look = [&](const Region& region) {
    const char* end = region.data + region.bytes;
    const size_t away = address < region.data ? static_cast<size_t>(region.data - address)
                        : address >= end      ? static_cast<size_t>(address - end)
                                              : 0;
    if (away < least) least = away, found = &region;
  };
  for (int i = 0; i < tensor_count; ++i) look(tensors[i]);
  for (int i = 0; i < shared_count; ++i) look(shared[i]);
  return found;
}

}  // namespace

void reserve_memory(size_t bytes, size_t gap_bytes) {
  gap = rounded(gap_bytes, kPage);
  memory_bytes = rounded(bytes, kPage) + 2 * gap + kSharedRoom;
  void* mapped = mmap(nullptr, memory_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) fail(kExitRefused, "no address space for %zu bytes", memory_bytes);
  memory_base = static_cast<char*>(mapped);
  take(gap);
  shared_base = take(kSharedRoom);
  mprotect(shared_base, kSharedRoom, PROT_READ | PROT_WRITE);
  take(gap);
}

Region* add_tensor(const char* name, size_t bytes, size_t item_bytes, size_t canary_bytes) {
  if (tensor_count == kMaxRegions) fault("a plan may have at most %d tensors", kMaxRegions);
  Region& region = tensors[tensor_count++];
  snprintf(region.name, sizeof region.name, "%s", name);
  const size_t before = rounded(canary_bytes, kPage);
  const size_t all = before + rounded(bytes + canary_bytes, kPage);
  char* start = take(all + gap);
  if (mprotect(start, all, PROT_READ | PROT_WRITE) != 0) {
    fail(kExitRefused, "no memory for the %zu bytes of tensor %s", bytes, name);
  }
  region.data = start + before;
  region.bytes = bytes;
  region.item_bytes = item_bytes;
  region.shared = false;
  return &region;
}

void finish_tensors() {
  forbid(memory_base, memory_bytes);
  for (int i = 0; i < tensor_count; ++i) allow(tensors[i].data, tensors[i].bytes);
}

void begin_block_memory(size_t smem_bytes) {
  shared_count = 0;
  shared_used = 0;
  shared_next = shared_base + kSharedAlignment - kSharedGap;
  forbid(shared_base, kSharedRoom);
  place_shared("dynamic shared memory", smem_bytes, kSharedAlignment);
}

void end_block_memory() {
  if (kAddress) return;
  for (int i = 0; i < shared_count; ++i) {
    const Region& region = shared[i];
    const char* before = i == 0 ? region.data - kSharedGap : shared[i - 1].data + shared[i - 1].bytes;
    check_gap(before, region.data);
    check_gap(region.data + region.bytes, region.data + region.bytes + kSharedGap);
  }
}

void* dynamic_shared() { return shared[0].data; }

void* static_shared(const char* name, size_t bytes, size_t alignment) {
  for (int i = 1; i < shared_count; ++i) {
    if (shared_keys[i] == name) return shared[i].data;
  }
  Region& region = place_shared(name, bytes, alignment < 16 ? 16 : alignment);
  shared_keys[shared_count - 1] = name;
  return region.data;
}

bool is_shared(const void* address) {
  const char* at = static_cast<const char*>(address);
  return at >= shared_base && at < shared_base + kSharedRoom;
}

bool is_allowed(const void* address, size_t bytes) {
#ifdef KTUNE_ADDRESS
  return bytes == 0 || __asan_region_is_poisoned(const_cast<void*>(address), bytes) == nullptr;
#else
  return address != nullptr || bytes == 0;
#endif
}

size_t shared_offset(const void* address) {
  if (!is_shared(address)) fault("an address that is not in shared memory was converted to one");
  return static_cast<size_t>(static_cast<const char*>(address) - shared_base);
}

void* shared_pointer(size_t offset) {
  if (offset >= kSharedRoom) fault("0x%zx is not an address in shared memory", offset);
  return shared_base + offset;
}

const char* describe(const void* address, char (&text)[160]) {
  const char* at = static_cast<const char*>(address);
  const Region* region = at >= memory_base && at < memory_base + memory_bytes ? nearest(at) : nullptr;
  if (region == nullptr) {
    snprintf(text, sizeof text, "address %p, far from every tensor", address);
    return text;
  }
  const auto item = static_cast<ptrdiff_t>(region->item_bytes);
  const ptrdiff_t offset = at - region->data;
  const ptrdiff_t index = (offset >= 0 ? offset : offset - item + 1) / item;
  if (region->shared) {
    snprintf(text, sizeof text, "byte %td of %s (%zu bytes)", offset, region->name, region->bytes);
  } else {
    snprintf(text, sizeof text, "%s[%td] (%zu elements)", region->name, index, region->bytes / region->item_bytes);
  }
  return text;
}

}  // namespace ktune_cpu
