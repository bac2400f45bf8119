// Memory that notices accesses beyond its ends: inaccessible pages on both sides, and a canary in the few bytes that
// alignment leaves between them and the data.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace emulator {

constexpr unsigned char POISON = 0xff;         // as float, half or bfloat16: NaN; as an index: -1
constexpr size_t GUARD_BYTES = size_t(1) << 24;  // on each side; address space only, it costs no memory

struct GuardedMemory {
  const char *label = "";
  unsigned char *reservation = nullptr, *pages = nullptr, *data = nullptr, *pages_end = nullptr;
  size_t reserved = 0, bytes = 0;
  void *history = nullptr;  // of the race check (races.cpp)
  size_t history_bytes = 0;

  // Room for `bytes` whose address is `phase` modulo `alignment` (a power of two, at most a page), as near to the end
  // of the accessible pages as that allows.
  void map(const char *what, size_t size, size_t alignment, size_t phase = 0, size_t guard = GUARD_BYTES) {
    const size_t page = sysconf(_SC_PAGESIZE);
    const size_t accessible = (size + alignment + page - 1) / page * page;
    label = what;
    bytes = size;
    reserved = accessible + 2 * guard;
    void *address = mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    reservation = static_cast<unsigned char *>(address);
    pages = reservation + guard;
    pages_end = pages + accessible;
    if (address == MAP_FAILED || mprotect(pages, accessible, PROT_READ | PROT_WRITE)) {
      fprintf(stderr, "CUDA emulator: no %zu bytes of address space for %s\n", reserved, what);
      abort();
    }
    const size_t last = reinterpret_cast<size_t>(pages_end) - size;
    data = pages_end - size - (last - phase) % alignment;
  }

  void unmap() {
    if (reservation) munmap(reservation, reserved);
    reservation = nullptr;
    if (history) munmap(history, history_bytes);
    history = nullptr;
  }

  // Before its first use, and for each block anew: what was not written reads as NaN, and damage() sees what was.
  void poison() { memset(pages, POISON, pages_end - pages); }

  bool owns(const void *address) const {
    return reservation && address >= reservation && address < reservation + reserved;
  }
  bool holds(const void *address) const { return address >= data && address < data + bytes; }

  // Address of a byte beside the data that was written to, or null.
  const unsigned char *damage() const {
    for (const unsigned char *p = data + bytes; p < pages_end; ++p)
      if (*p != POISON) return p;
    for (const unsigned char *p = data; p > pages; --p)
      if (p[-1] != POISON) return p - 1;
    return nullptr;
  }
};

// A NumPy array, or several that overlap, copied between guards for the time of a launch. Same layout in runtime.py.
struct Buffer {
  unsigned char *host;
  size_t bytes;
  const char *label;
  int writable;
};

}  // namespace emulator
