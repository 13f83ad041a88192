// cp.async: copies that a thread has started and that land when the schedule says so, by their wait at the latest.
#include <stdlib.h>

#include "runtime.h"

namespace ktune_cpu {

namespace {

void land(Copy& copy) {
  if (kRaces) races::note(copy.to, static_cast<size_t>(copy.bytes), true, false, copy.place);
  memcpy(copy.to, copy.from, static_cast<size_t>(copy.valid_bytes));
  memset(static_cast<char*>(copy.to) + copy.valid_bytes, 0, static_cast<size_t>(copy.bytes - copy.valid_bytes));
}

void land_groups_before(unsigned group) {
  Thread& me = *current;
  int kept = 0;
  for (int i = 0; i < me.copy_count; ++i) {
    if (me.copies[i].group < group) {
      land(me.copies[i]);
    } else {
      me.copies[kept++] = me.copies[i];
    }
  }
  me.copy_count = kept;
}

}  // namespace

void copy_async(void* to, const void* from, int bytes, int valid_bytes) {
  Thread& me = *current;
  char text[96];
  if ((bytes != 4 && bytes != 8 && bytes != 16) || valid_bytes < 0 || valid_bytes > bytes) {
    fault("cp.async copies 4, 8 or 16 bytes, of which all or some are read; %s asks for %d and %d", name_of(me, text),
          bytes, valid_bytes);
  }
  if (reinterpret_cast<uintptr_t>(to) % static_cast<uintptr_t>(bytes) != 0 ||
      reinterpret_cast<uintptr_t>(from) % static_cast<uintptr_t>(bytes) != 0) {
    fault("cp.async of %d bytes by %s is misaligned", bytes, name_of(me, text));
  }
  const auto place = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  const bool source_allowed = is_allowed(from, static_cast<size_t>(valid_bytes));
  if (!source_allowed || !is_allowed(to, static_cast<size_t>(bytes))) {
    char outside[160];
    fault("out of bounds at {pc:0x%zx}: %s copies %s %s", static_cast<size_t>(place), name_of(me, text),
          source_allowed ? "to" : "from", describe(source_allowed ? to : from, outside));
  }
  Copy copy{to, from, bytes, valid_bytes, me.copy_group, place};
  if (kRaces) {
    races::note(from, static_cast<size_t>(valid_bytes), false, false, place);
    races::note(to, static_cast<size_t>(bytes), true, false, place);
  }
  const bool at_once = schedule.order == Order::oldest_first ||
                       (schedule.order == Order::random && (random_bits() >> 17 & 1) != 0);
  if (at_once) {
    land(copy);
    return;
  }
  if (me.copy_count == me.copy_room) {
    me.copy_room = me.copy_room == 0 ? 64 : 2 * me.copy_room;
    me.copies = static_cast<Copy*>(realloc(me.copies, static_cast<size_t>(me.copy_room) * sizeof(Copy)));
  }
  me.copies[me.copy_count++] = copy;
}

void commit_copies() { ++current->copy_group; }

void wait_copies(int pending_groups) {
  const auto pending = static_cast<unsigned>(pending_groups);
  land_groups_before(current->copy_group > pending ? current->copy_group - pending : 0);
}

void wait_all_copies() { land_groups_before(current->copy_group + 1); }

}  // namespace ktune_cpu
