// CUDA threads as fibers: which one runs when, barriers, exchanges within a warp, and the reports when something is
// wrong.
//
// A fiber runs until it waits. Blocks run one after another. The schedule decides which warp goes on:
//   ROUND_ROBIN        each warp in turn, one step at a time
//   FORWARD, BACKWARD  the first (last) warp that can, as far as it can
//   RANDOM             bursts of random warps, lanes shuffled, copies that arrive before they are waited for
// Only FORWARD, BACKWARD and RANDOM let a warp run ahead of another, which is what a missing __syncthreads needs to
// show.
#pragma once
#include <setjmp.h>
#include <signal.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <random>

#include "context.h"
#include "memory.h"
#include "races.h"

namespace emulator {

enum Schedule { ROUND_ROBIN, FORWARD, BACKWARD, RANDOM };

struct Index {
  unsigned x, y, z;
};

struct PendingCopy {  // a cp.async that has been started but not waited for
  unsigned char *destination;
  unsigned char data[16];
  unsigned group;
  const void *issued_at;  // the instruction
  bool has_landed;
};

struct Thread {
  Context context;
  Index index;
  unsigned lane, warp;
  bool done;
  const uint64_t *waits_for;  // waits while *waits_for == waits_while
  uint64_t waits_while;
  const char *waits_at, *waits_in;  // operation and file, for reports
  int waits_on_line;
  std::vector<PendingCopy> copies;
  unsigned copy_group;
  const void *instruction;  // at work while one of the emulator's functions stands for it

  bool runnable() const { return !done && !(waits_for && *waits_for == waits_while); }
};

struct Exchange {  // lanes of one mask that meet in one warp-wide operation
  uint32_t mask = 0, arrived = 0, left = 0;
  uint64_t generation = 0;
  const char *operation = nullptr;
  alignas(16) unsigned char data[32][64];
};

struct Warp {
  Exchange exchanges[32];
};

struct Barrier {  // of the threads of a block
  unsigned arrived = 0;
  uint64_t generation = 0;
  int line = 0;
};

struct Machine {
  const char *kernel = "";
  Index block{}, block_extent{}, grid_extent{};
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<unsigned> lane_order;
  std::vector<GuardedMemory> stacks;
  Barrier barrier;
  Thread *current = nullptr;
  Context main;
  unsigned alive = 0;
  int schedule = ROUND_ROBIN;
  std::mt19937 random;
  uint64_t block_serial = 0;  // counts blocks, so that shared arrays know when to be poisoned anew
  GuardedMemory dynamic_shared;
  std::vector<GuardedMemory *> static_shared;
  std::vector<GuardedMemory> arguments;
  void (*entry)(void *) = nullptr;
  void *entry_argument = nullptr;
  bool failed = false;
  char message[2048];
  uintptr_t fault_address = 0, other_address = 0;  // of the instruction at fault, and of what it is in a race with
  sigjmp_buf escape;

  Machine() { static_shared.reserve(1024); }  // the race check reads it while a fiber adds to it
};
inline Machine machine;

// ---- reports ----------------------------------------------------------------------------------------------------

inline void describe(const char *format, va_list arguments) {
  char *out = machine.message;
  size_t room = sizeof machine.message;
  int used = snprintf(out, room, "kernel %s, block (%u, %u, %u)", machine.kernel, machine.block.x, machine.block.y,
                      machine.block.z);
  if (machine.current) {
    const Index &t = machine.current->index;
    used += snprintf(out + used, room - used, ", thread (%u, %u, %u)", t.x, t.y, t.z);
  }
  used += snprintf(out + used, room - used, ": ");
  vsnprintf(out + used, room - used, format, arguments);
  machine.failed = true;
}

// Ends the launch with a message; called from a fiber, it does not return.
[[gnu::format(printf, 1, 2)]] inline void fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  describe(format, arguments);
  va_end(arguments);
  if (machine.current) switch_context(machine.current->context, machine.main);
}

// ---- waiting ----------------------------------------------------------------------------------------------------

inline void wait_while(const uint64_t *counter, uint64_t value, const char *operation, const char *file, int line) {
  Thread &self = *machine.current;
  self.waits_for = counter;
  self.waits_while = value;
  self.waits_at = operation;
  self.waits_in = file;
  self.waits_on_line = line;
  switch_context(self.context, machine.main);
  self.waits_for = nullptr;
}

// Lets the others run; for loops that poll memory.
inline void step_aside() {
  static const uint64_t never = 1;
  wait_while(&never, 0, "__nanosleep", "", 0);
}

inline void meet_block(const char *file, int line) {
  Barrier &barrier = machine.barrier;
  if (barrier.arrived && barrier.line != line)
    fail("divergent barrier: this thread is at %s:%d, others of its block wait at line %d", file, line, barrier.line);
  barrier.line = line;
  const uint64_t generation = barrier.generation;
  if (++barrier.arrived == machine.threads.size()) {
    races_meet_block();
    barrier.arrived = 0;
    ++barrier.generation;
  } else {
    wait_while(&barrier.generation, generation, "__syncthreads", file, line);
  }
}

inline Exchange &meet(uint32_t mask, const char *operation, const void *value, size_t bytes, bool orders_memory) {
  Thread &self = *machine.current;
  const uint32_t bit = 1u << self.lane;
  if (!(mask & bit)) fail("%s: the lane is not in its own mask %#x", operation, mask);
  Exchange *meeting = nullptr;
  for (Exchange &candidate : machine.warps[self.warp].exchanges) {
    if (candidate.mask == mask && candidate.arrived != mask) meeting = &candidate;  // still gathering
    if (meeting) break;
  }
  for (Exchange &candidate : machine.warps[self.warp].exchanges) {
    if (meeting) break;
    if (!candidate.mask) meeting = &candidate;
  }
  if (!meeting->mask) {
    meeting->mask = mask;
    meeting->operation = operation;
    meeting->arrived = meeting->left = 0;
  } else if (meeting->operation != operation) {
    fail("divergent warp: this lane is at %s while others of mask %#x are at %s", operation, mask, meeting->operation);
  }
  if (bytes) memcpy(meeting->data[self.lane], value, bytes);
  meeting->arrived |= bit;
  if (meeting->arrived == mask) {
    if (orders_memory) races_meet(mask);
    ++meeting->generation;
  } else {
    wait_while(&meeting->generation, meeting->generation, operation, "warp mask", (int)mask);
  }
  return *meeting;
}

inline void leave(Exchange &meeting) {
  meeting.left |= 1u << machine.current->lane;
  if (meeting.left == meeting.mask) meeting.mask = 0;
}

// All lanes of `mask` deposit a value; `read` computes this lane's result from the deposits (one per lane of the warp).
template <class Value, class Read>
auto exchange(uint32_t mask, const char *operation, const Value &value, Read read, bool orders_memory = false) {
  static_assert(sizeof(Value) <= sizeof(Exchange::data[0]));
  Exchange &meeting = meet(mask, operation, &value, sizeof value, orders_memory);
  auto result = read([&](unsigned lane) {
    if (!(mask >> lane & 1)) fail("%s reads lane %u, which is not in mask %#x", operation, lane, mask);
    Value deposit;
    memcpy(&deposit, meeting.data[lane], sizeof deposit);
    return deposit;
  });
  leave(meeting);
  return result;
}

// ---- copies that are under way ----------------------------------------------------------------------------------

NOT_CHECKED inline void land(PendingCopy &copy) {
  if (!copy.has_landed) memcpy(copy.destination, copy.data, sizeof copy.data);
  copy.has_landed = true;
}

// Lets some of the thread's copies arrive early.
inline void land_some_copies(Thread &thread) {
  for (PendingCopy &copy : thread.copies)
    if (machine.random() % 4 == 0) land(copy);
}

// The running thread waits for its copies of the groups before `end`.
inline void finish_copies(unsigned end) {
  std::vector<PendingCopy> &copies = machine.current->copies;
  size_t kept = 0;
  for (PendingCopy &copy : copies) {
    if (copy.group >= end) {
      copies[kept++] = copy;
      continue;
    }
    land(copy);
    races_finish(copy);
  }
  copies.resize(kept);
}

// Nothing waits for a copy that was not committed: it may arrive after the memory has been put to another use.
inline void check_copies() {
  const Thread &self = *machine.current;
  const auto is_uncommitted = [&](const PendingCopy &copy) { return copy.group == self.copy_group; };
  if (std::any_of(self.copies.begin(), self.copies.end(), is_uncommitted))
    fail("the thread returns with a cp.async that it has not committed");
}

// ---- running a block --------------------------------------------------------------------------------------------

constexpr size_t STACK_BYTES = size_t(128) << 10;

inline void fiber_entry() {
  machine.entry(machine.entry_argument);
  check_copies();
  machine.current->done = true;
  --machine.alive;
  switch_context(machine.current->context, machine.main);
}

inline void start_threads() {
  const Index &extent = machine.block_extent;
  const unsigned count = extent.x * extent.y * extent.z;
  machine.threads.resize(count);
  machine.warps.resize((count + 31) / 32);
  while (machine.stacks.size() < count) {
    machine.stacks.emplace_back();
    machine.stacks.back().map("the thread's stack", STACK_BYTES, 16, 0, STACK_BYTES);
  }
  for (Warp &warp : machine.warps)
    for (Exchange &meeting : warp.exchanges) meeting.mask = 0;
  machine.barrier = Barrier();
  for (unsigned t = 0; t < count; ++t) {
    Thread &thread = machine.threads[t];
    thread.index = {t % extent.x, t / extent.x % extent.y, t / (extent.x * extent.y)};
    thread.lane = t % 32;
    thread.warp = t / 32;
    thread.done = false;
    thread.waits_for = nullptr;
    thread.copies.clear();
    thread.copy_group = 0;
    thread.instruction = nullptr;
    prepare_context(thread.context, machine.stacks[t].data, STACK_BYTES, fiber_entry);
  }
  machine.alive = count;
}

inline bool warp_runnable(unsigned warp) {
  const unsigned end = std::min<unsigned>(32 * warp + 32, machine.threads.size());
  for (unsigned t = 32 * warp; t < end; ++t)
    if (machine.threads[t].runnable()) return true;
  return false;
}

// The warp to go on with, -1 if all wait.
inline int choose_warp(int previous) {
  const int count = machine.warps.size();
  if (machine.schedule == RANDOM && previous >= 0 && machine.random() % 8 && warp_runnable(previous)) return previous;
  int first = 0, step = 1;
  if (machine.schedule == ROUND_ROBIN) first = previous + 1;
  if (machine.schedule == BACKWARD) first = count - 1, step = count - 1;  // count - 1 = -1 modulo count
  if (machine.schedule == RANDOM) first = machine.random() % count;
  for (int i = 0; i < count; ++i) {
    const int warp = (first + i * step) % count;
    if (warp_runnable(warp)) return warp;
  }
  return -1;
}

inline void report_deadlock() {
  char text[1024];
  int used = snprintf(text, sizeof text, "deadlock: of %zu threads, %zu have returned", machine.threads.size(),
                      machine.threads.size() - machine.alive);
  std::vector<const Thread *> reported;
  for (const Thread &thread : machine.threads) {
    const auto same = [&](const Thread *other) {
      return other->waits_at == thread.waits_at && other->waits_on_line == thread.waits_on_line;
    };
    if (thread.done || std::any_of(reported.begin(), reported.end(), same)) continue;
    reported.push_back(&thread);
    const auto waiting = std::count_if(machine.threads.begin(), machine.threads.end(),
                                       [&](const Thread &other) { return !other.done && same(&other); });
    if (used < (int)sizeof text - 200)
      used += snprintf(text + used, sizeof text - used, "; %ld wait at %s (%s:%d), the first is thread (%u, %u, %u)",
                       (long)waiting, thread.waits_at, thread.waits_in, thread.waits_on_line, thread.index.x,
                       thread.index.y, thread.index.z);
  }
  machine.current = nullptr;
  fail("%s", text);
}

inline void check_canaries() {
  machine.current = nullptr;
  const auto check = [](GuardedMemory &memory) {
    const unsigned char *at = memory.reservation ? memory.damage() : nullptr;
    if (!at) return;
    fail("byte %ld of %s, which has %zu bytes, was written", (long)(at - memory.data), memory.label, memory.bytes);
    memory.poison();  // shared arrays outlive the launch
  };
  check(machine.dynamic_shared);
  for (GuardedMemory *array : machine.static_shared) check(*array);
  for (GuardedMemory &argument : machine.arguments) check(argument);
}

inline void run_block() {
  ++machine.block_serial;
  if (machine.dynamic_shared.reservation) machine.dynamic_shared.poison();
  start_threads();
  races_begin_block();
  machine.lane_order.resize(32);
  for (unsigned i = 0; i < 32; ++i) machine.lane_order[i] = machine.schedule == BACKWARD ? 31 - i : i;
  if (machine.schedule == RANDOM) std::shuffle(machine.lane_order.begin(), machine.lane_order.end(), machine.random);
  int warp = -1;
  while (machine.alive) {
    warp = choose_warp(warp);
    if (warp < 0) return report_deadlock();
    for (unsigned lane : machine.lane_order) {
      const unsigned t = 32 * warp + lane;
      if (t >= machine.threads.size() || !machine.threads[t].runnable()) continue;
      machine.current = &machine.threads[t];
      if (machine.schedule == RANDOM) land_some_copies(machine.threads[t]);
      switch_context(machine.main, machine.current->context);
      if (machine.failed) return;
    }
  }
  check_canaries();
}

}  // namespace emulator
