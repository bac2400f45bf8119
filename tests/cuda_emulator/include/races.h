// The race check's side of the scheduler (../races.cpp), empty functions in what is compiled without it.
//
// With EMULATOR_RACES kernels are compiled with -fsanitize=thread: g++ then calls a function for each access to memory.
// races.cpp has these functions, instead of the sanitizer's library. It knows for each byte of shared memory and of the
// arguments who touched it last, and for each thread what happened before: two threads that touch one byte, one of them
// writing, are in a race unless a barrier (or __syncwarp) stands between. Warp shuffles, votes, ldmatrix and mma order
// nothing, as CUDA has it. Blocks of a grid are never ordered.
#pragma once
#include <cstddef>

namespace emulator {

struct PendingCopy;

#ifdef EMULATOR_RACES
void races_begin_block();
void races_meet_block();         // all threads of the block are at a barrier
void races_meet(unsigned mask);  // all lanes of the warp are there
void races_issue(const PendingCopy &copy, const void *global, size_t bytes);
void races_finish(const PendingCopy &copy);  // the thread has waited for its copy
void races_atomic(void *address, size_t bytes, const void *instruction);
#define NOT_CHECKED [[gnu::no_sanitize("thread")]]  // the function tells races.cpp itself what it does to memory
#else
inline void races_begin_block() {}
inline void races_meet_block() {}
inline void races_meet(unsigned) {}
inline void races_issue(const PendingCopy &, const void *, size_t) {}
inline void races_finish(const PendingCopy &) {}
inline void races_atomic(void *, size_t, const void *) {}
#define NOT_CHECKED
#endif
#define NOT_INLINED [[gnu::noinline]]
#define CALLER __builtin_return_address(0)  // of a function that is not inlined: the instruction it stands for

}  // namespace emulator
