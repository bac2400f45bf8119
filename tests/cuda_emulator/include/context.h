// Switching between the stack of the caller and the stacks of the emulated CUDA threads.
#pragma once
#include <cstddef>

#if !defined(__x86_64__) || defined(EMULATOR_UCONTEXT)
#include <ucontext.h>

namespace emulator {
struct Context {
  ucontext_t state;
};
inline void switch_context(Context &from, Context &to) { swapcontext(&from.state, &to.state); }
inline void prepare_context(Context &context, unsigned char *stack, size_t bytes, void (*entry)()) {
  getcontext(&context.state);
  context.state.uc_stack.ss_sp = stack;
  context.state.uc_stack.ss_size = bytes;
  context.state.uc_link = nullptr;
  makecontext(&context.state, entry, 0);
}
}  // namespace emulator

#else

// swapcontext asks the kernel for the signal mask at every switch; this saves what the ABI wants kept and no more.
extern "C" void emulator_switch_stacks(void **save, void *restore);
asm(R"(.text
.weak emulator_switch_stacks
.hidden emulator_switch_stacks
.type emulator_switch_stacks, @function
emulator_switch_stacks:
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
)");

namespace emulator {
struct Context {
  void *stack_pointer;
};
inline void switch_context(Context &from, Context &to) {
  emulator_switch_stacks(&from.stack_pointer, to.stack_pointer);
}
inline void prepare_context(Context &context, unsigned char *stack, size_t bytes, void (*entry)()) {
  void **top = reinterpret_cast<void **>(stack + bytes);
  *--top = nullptr;  // the return address of `entry`, which never returns; keeps the stack aligned as after a call
  *--top = reinterpret_cast<void *>(entry);
  context.stack_pointer = top - 6;  // the six registers that the switch pops
}
}  // namespace emulator
#endif
