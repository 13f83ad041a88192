// Where threads meet: shuffles and votes of a warp, barriers of a block.
#include "runtime.h"

namespace ktune_cpu {

namespace {

struct Barrier {
  int arrived;
  int expected;  // 0: all that have not exited
  Site site;
  int first;     // the thread that came first
  int yes;
  Vote vote;
};

Barrier barriers[kBarriers];

int source_lane(Exchange exchange, int lane, int argument, int width) {
  const int segment = ~(width - 1) & 31;
  const int lowest = lane & segment;
  const int highest = lowest | (width - 1);
  int source = lane;
  switch (exchange) {
    case Exchange::shuffle_index: source = lowest | (argument & (width - 1)); break;
    case Exchange::shuffle_up: source = lane - argument < lowest ? lane : lane - argument; break;
    case Exchange::shuffle_down: source = lane + argument > highest ? lane : lane + argument; break;
    case Exchange::shuffle_xor: source = (lane ^ argument) > highest ? lane : lane ^ argument; break;
    default: break;
  }
  return source & 31;
}

uint64_t received(const Warp& warp, const Meeting& meeting, const Thread& thread) {
  unsigned yes = 0, equal = 0;
  switch (meeting.exchange) {
    case Exchange::sync: return 0;
    case Exchange::shuffle_index:
    case Exchange::shuffle_up:
    case Exchange::shuffle_down:
    case Exchange::shuffle_xor: {
      const int source = source_lane(meeting.exchange, thread.lane, thread.argument, thread.width);
      // what a lane outside of the exchange would give is undefined
      return meeting.arrived >> source & 1 ? warp.first[source].value : ~uint64_t{0};
    }
    default: break;
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    if ((meeting.arrived >> lane & 1) == 0) continue;
    yes |= static_cast<unsigned>(warp.first[lane].value != 0) << lane;
    equal |= static_cast<unsigned>(warp.first[lane].value == thread.value) << lane;
  }
  switch (meeting.exchange) {
    case Exchange::ballot: return yes;
    case Exchange::any: return yes != 0;
    case Exchange::all: return yes == meeting.arrived;
    default: return equal;
  }
}

bool is_complete(const Warp& warp, const Meeting& meeting) {
  return ((meeting.arrived | warp.gone) & meeting.mask) == meeting.mask;
}

void complete(Warp& warp, Meeting& meeting) {
  const Meeting met = meeting;
  meeting = warp.meetings[--warp.meeting_count];
  for (unsigned lanes = met.arrived; lanes != 0; lanes &= lanes - 1) {
    Thread& thread = warp.first[__builtin_ctz(lanes)];
    thread.result = received(warp, met, thread);
  }
  if (kRaces && met.exchange == Exchange::sync) races::warp_met(warp, met.arrived);
  for (unsigned lanes = met.arrived; lanes != 0; lanes &= lanes - 1) make_ready(warp.first[__builtin_ctz(lanes)]);
}

int vote_of(const Barrier& barrier) {
  switch (barrier.vote) {
    case Vote::conjunction: return barrier.yes == barrier.arrived;
    case Vote::disjunction: return barrier.yes > 0;
    default: return barrier.yes;
  }
}

void pass_if_complete(int id) {
  Barrier& barrier = barriers[id];
  if (barrier.arrived == 0 || barrier.arrived < (barrier.expected > 0 ? barrier.expected : live_threads)) return;
  static bool met[kMaxThreads];
  for (int i = 0; i < thread_count; ++i) {
    Thread& thread = threads[i];
    met[i] = thread.state == State::at_block && thread.barrier == id;
    if (!met[i]) continue;
    thread.result = static_cast<uint64_t>(vote_of(barrier));
    make_ready(thread);
  }
  if (kRaces) barrier.expected == 0 ? races::block_met() : races::threads_met(met, id);
  barrier = {};
}

Barrier& enter_barrier(int id, int expected, const Site& site) {
  if (id < 0 || id >= kBarriers) {
    fault("%s at %s:%d: barrier %d is not one of 0 to 15", site.operation, site.file, site.line, id);
  }
  Barrier& barrier = barriers[id];
  if (barrier.arrived == 0) {
    barrier.expected = expected;
    barrier.site = site;
    barrier.first = current->number;
  } else if (barrier.expected != expected || (expected == 0 && !same_site(barrier.site, site))) {
    const uint3 other = threads[barrier.first].index;
    char text[96];
    fail(kExitDeadlock, "divergent barrier: %s is in %s at %s:%d, thread (%u,%u,%u) in %s at %s:%d",
         name_of(*current, text), site.operation, site.file, site.line, other.x, other.y, other.z,
         barrier.site.operation, barrier.site.file, barrier.site.line);
  }
  ++barrier.arrived;
  return barrier;
}

}  // namespace

void begin_meetings() { memset(barriers, 0, sizeof barriers); }

void leave_meetings(const Thread& thread) {
  Warp& warp = *thread.warp;
  warp.gone |= 1u << thread.lane;
  if (kRaces) races::thread_left(thread);
  for (int i = warp.meeting_count; i-- > 0;) {
    if (is_complete(warp, warp.meetings[i])) complete(warp, warp.meetings[i]);
  }
  for (int id = 0; id < kBarriers; ++id) pass_if_complete(id);
}

uint64_t meet_warp(Exchange exchange, unsigned mask, uint64_t value, int argument, int width, Site site) {
  Thread& me = *current;
  Warp& warp = *me.warp;
  char text[96];
  if ((mask >> me.lane & 1) == 0) {
    fault("%s at %s:%d: %s is lane %d, which is not in its own mask 0x%08x", site.operation, site.file, site.line,
          name_of(me, text), me.lane, mask);
  }
  if (width < 1 || width > 32 || (width & (width - 1)) != 0) {
    fault("%s at %s:%d: width must be 1, 2, 4, 8, 16 or 32, got %d", site.operation, site.file, site.line, width);
  }
  me.site = site;
  me.mask = mask;
  me.value = value;
  me.argument = argument;
  me.width = width;
  me.state = State::at_warp;
  int at = 0;
  while (at < warp.meeting_count && !(warp.meetings[at].mask == mask && warp.meetings[at].exchange == exchange &&
                                      same_site(warp.meetings[at].site, site))) {
    ++at;
  }
  Meeting& meeting = warp.meetings[at];
  if (at == warp.meeting_count) {
    meeting = {exchange, mask, 0, site};
    ++warp.meeting_count;
  }
  meeting.arrived |= 1u << me.lane;
  if (is_complete(warp, meeting)) complete(warp, meeting);
  give_way();
  return me.result;
}

int meet_block(int id, int expected, Vote vote, bool predicate, Site site) {
  Thread& me = *current;
  Barrier& barrier = enter_barrier(id, expected, site);
  barrier.yes += predicate;
  barrier.vote = vote;
  me.site = site;
  me.mask = 0;
  me.state = State::at_block;
  me.barrier = id;
  pass_if_complete(id);
  give_way();
  return static_cast<int>(me.result);
}

void arrive_block(int id, int expected, Site site) {
  enter_barrier(id, expected, site);
  if (kRaces) races::thread_arrived(id);
  pass_if_complete(id);
}

unsigned active_lanes() { return ~current->warp->gone; }
unsigned active_lane() { return static_cast<unsigned>(current->lane); }

bool same_site(const Site& a, const Site& b) {
  return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0) &&
         (a.operation == b.operation || strcmp(a.operation, b.operation) == 0);
}

}  // namespace ktune_cpu
