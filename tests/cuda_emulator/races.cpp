// The race check (include/races.h); compiled without -fsanitize=thread and linked to kernels that are compiled with it.
//
// Time is counted in phases, which end where a whole block has met at a barrier: what happened in an earlier phase of
// the block is over. Within a phase each thread has a clock, and knows how far it has seen the clocks of the others
// (Lamport's happened-before by vector clocks, as in Flanagan and Freund, FastTrack, PLDI 2009).
#include "cuda_emulator.h"

namespace emulator {
namespace {

const char anchor = 0;  // instructions are kept as distances from here

struct Access {
  uint32_t phase, clock;
  int32_t instruction;
  uint16_t thread;
  bool is_atomic;
};

struct Visit {  // of a block, one more than its number in the grid
  uint64_t block;
  int32_t instruction;
};

constexpr int READS = 3;  // of different threads that are remembered

struct Byte {
  Access write, reads[READS];
  Visit writer, readers[2];
  bool is_written_atomically;
  uint16_t copier;  // one more than the thread that has a cp.async to it under way
  uint64_t copied_in;
  int32_t copy_instruction;
};

struct Times {
  uint32_t phase = 0;
  std::vector<uint32_t> seen;
};

uint32_t phase = 0;
uint64_t block = 0;
std::vector<Times> threads;

unsigned self() { return unsigned(machine.current - machine.threads.data()); }

// The clocks, cleared if they are of an earlier phase; a thread's own starts at 1.
uint32_t *clocks(Times &times, int own = -1) {
  if (times.phase != phase || times.seen.size() != machine.threads.size()) {
    times.phase = phase;
    times.seen.assign(machine.threads.size(), 0);
    if (own >= 0) times.seen[own] = 1;
  }
  return times.seen.data();
}
uint32_t *clocks_of(unsigned thread) { return clocks(threads[thread], (int)thread); }

void join(uint32_t *into, const uint32_t *from) {
  for (size_t i = 0; i < machine.threads.size(); ++i) into[i] = std::max(into[i], from[i]);
}

GuardedMemory *memory_of(const void *address) {
  static GuardedMemory *last = nullptr;
  if (last && last->reservation && last->holds(address)) return last;
  if (machine.dynamic_shared.reservation && machine.dynamic_shared.holds(address))
    return last = &machine.dynamic_shared;
  for (GuardedMemory *array : machine.static_shared)
    if (array->holds(address)) return last = array;
  last = nullptr;
  for (GuardedMemory &argument : machine.arguments)
    if (argument.holds(address)) return &argument;  // not kept: it goes with the launch
  return nullptr;
}

bool is_argument(const GuardedMemory *memory) {
  return !machine.arguments.empty() && memory >= &machine.arguments.front() && memory <= &machine.arguments.back();
}

enum Kind { READ, WRITE, ATOMIC };

struct Touch {  // what the running thread does now
  Kind kind;
  unsigned thread;
  uint32_t *clocks;
  int32_t instruction;
  const GuardedMemory *memory;
  size_t at;
};

void report(const Touch &touch, int32_t other, const char *format, ...) {
  machine.fault_address = reinterpret_cast<uintptr_t>(&anchor) + touch.instruction;
  machine.other_address = reinterpret_cast<uintptr_t>(&anchor) + other;
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  fail("race: this thread %s byte %zu of %s, %s", touch.kind == READ ? "reads" : "writes", touch.at,
       touch.memory->label, text);
}

void check_order(const Touch &touch, const Access &before, const char *did) {
  if (before.phase != phase || before.thread == touch.thread) return;
  if (touch.kind == ATOMIC && before.is_atomic) return;
  if (touch.clocks[before.thread] >= before.clock) return;
  const Index &other = machine.threads[before.thread].index;
  report(touch, before.instruction, "which thread (%u, %u, %u) %s, with no barrier between", other.x, other.y, other.z,
         did);
}

void check_blocks(const Touch &touch, const Visit &visit, const char *did) {
  if (visit.block && visit.block != block)
    report(touch, visit.instruction, "which block %zu of the grid %s", size_t(visit.block - 1), did);
}

void remember_read(const Touch &touch, Byte &byte, const Access &access) {
  Access *place = nullptr;
  for (Access &read : byte.reads)
    if (read.phase != phase || touch.clocks[read.thread] >= read.clock) place = &read;  // a write after this is after it
  if (place) *place = access;  // if there is none, three that no barrier has ordered are enough
}

void remember_visit(const Touch &touch, Byte &byte) {
  const Visit visit{block, touch.instruction};
  if (touch.kind != READ) byte.writer = visit, byte.is_written_atomically = touch.kind == ATOMIC;
  else if (!byte.readers[0].block || byte.readers[0].block == block) byte.readers[0] = visit;
  else byte.readers[1] = visit;
}

void touch_byte(const Touch &touch, Byte &byte, bool is_shared_by_blocks) {
  if (byte.copier && byte.copied_in == machine.block_serial) {
    const Index &other = machine.threads[byte.copier - 1].index;
    report(touch, byte.copy_instruction, "to which a cp.async of thread (%u, %u, %u) is under way", other.x, other.y,
           other.z);
  }
  check_order(touch, byte.write, "wrote");
  if (touch.kind != READ)
    for (const Access &read : byte.reads) check_order(touch, read, "read");
  if (is_shared_by_blocks) {
    if (!(touch.kind == ATOMIC && byte.is_written_atomically)) check_blocks(touch, byte.writer, "wrote");
    if (touch.kind != READ)
      for (const Visit &visit : byte.readers) check_blocks(touch, visit, "read");
    remember_visit(touch, byte);
  }
  const Access access{phase, touch.clocks[touch.thread], touch.instruction, uint16_t(touch.thread),
                      touch.kind == ATOMIC};
  if (touch.kind == READ) remember_read(touch, byte, access);
  else byte.write = access;
}

Byte *bytes_of(GuardedMemory &memory) {
  if (!memory.history) memory.history = mmap(nullptr, memory.history_bytes = memory.bytes * sizeof(Byte),
                                             PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory.history == MAP_FAILED) abort();
  return static_cast<Byte *>(memory.history);
}

template <class Do> void each_byte(Kind kind, const void *address, size_t bytes, int32_t instruction, Do act) {
  GuardedMemory *memory = memory_of(address);
  if (!memory) return;
  const unsigned thread = self();
  const size_t begin = static_cast<const unsigned char *>(address) - memory->data;
  Touch touch{kind, thread, clocks_of(thread), instruction, memory, begin};
  Byte *history = bytes_of(*memory);
  for (; touch.at < std::min(begin + bytes, memory->bytes); ++touch.at) act(touch, history[touch.at]);
}

int32_t instruction_before(const void *return_address) {
  return int32_t(static_cast<const char *>(return_address) - &anchor - 1);
}

bool is_on_own_stack(const void *address) {
  return machine.stacks[self()].owns(address);
}

void note(Kind kind, const void *address, size_t bytes, const void *return_address) {
  if (!machine.current || is_on_own_stack(address)) return;
  if (machine.current->instruction) return_address = machine.current->instruction;
  each_byte(kind, address, bytes, instruction_before(return_address), [](const Touch &touch, Byte &byte) {
    touch_byte(touch, byte, is_argument(touch.memory));
  });
}

}  // namespace

// ---- what orders ------------------------------------------------------------------------------------------------

void races_begin_block() {
  ++phase;
  const Index &at = machine.block, &grid = machine.grid_extent;
  block = 1 + at.x + grid.x * (at.y + uint64_t(grid.y) * at.z);
  threads.resize(machine.threads.size());
}

void races_meet_block() { ++phase; }

void races_meet(unsigned mask) {
  const unsigned first = self() / 32 * 32;
  Times all;
  for (unsigned lane = 0; lane < 32; ++lane)
    if (mask >> lane & 1) join(clocks(all), clocks_of(first + lane));
  for (unsigned lane = 0; lane < 32; ++lane)
    if (mask >> lane & 1) join(clocks_of(first + lane), clocks(all)), ++clocks_of(first + lane)[first + lane];
}

// ---- what is ordered --------------------------------------------------------------------------------------------

void races_atomic(void *address, size_t bytes, const void *instruction) { note(ATOMIC, address, bytes, instruction); }

void races_issue(const PendingCopy &copy, const void *global, size_t bytes) {
  note(READ, global, bytes, copy.issued_at);
  note(WRITE, copy.destination, sizeof copy.data, copy.issued_at);
  each_byte(WRITE, copy.destination, sizeof copy.data, instruction_before(copy.issued_at),
            [](const Touch &touch, Byte &byte) {
              byte.copier = touch.thread + 1;
              byte.copied_in = machine.block_serial;
              byte.copy_instruction = touch.instruction;
            });
}

void races_finish(const PendingCopy &copy) {
  each_byte(WRITE, copy.destination, sizeof copy.data, instruction_before(copy.issued_at),
            [](const Touch &touch, Byte &byte) {
              if (byte.copier == touch.thread + 1) byte.copier = 0;
              touch_byte(touch, byte, false);
            });
}

}  // namespace emulator

// ---- what g++ calls ---------------------------------------------------------------------------------------------

#define HOOK extern "C" __attribute__((visibility("hidden"))) void
#define HOOKS(size)                                                                                                  \
  HOOK __tsan_read##size(void *p) { emulator::note(emulator::READ, p, size, __builtin_return_address(0)); }          \
  HOOK __tsan_write##size(void *p) { emulator::note(emulator::WRITE, p, size, __builtin_return_address(0)); }        \
  HOOK __tsan_unaligned_read##size(void *p) { emulator::note(emulator::READ, p, size, __builtin_return_address(0)); } \
  HOOK __tsan_unaligned_write##size(void *p) { emulator::note(emulator::WRITE, p, size, __builtin_return_address(0)); }

HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
HOOK __tsan_read_range(void *p, long bytes) {
  emulator::note(emulator::READ, p, bytes, __builtin_return_address(0));
}
HOOK __tsan_write_range(void *p, long bytes) {
  emulator::note(emulator::WRITE, p, bytes, __builtin_return_address(0));
}
HOOK __tsan_vptr_update(void **, void *) {}
HOOK __tsan_vptr_read(void **) {}
HOOK __tsan_init() {}
