// A launch: arguments between guards, blocks one after another, faults turned into messages.
#pragma once
#include <dlfcn.h>
#include <ucontext.h>

#include <tuple>
#include <utility>

#include "scheduler.h"

namespace emulator {

// Same layout in runtime.py.
struct Request {
  const char *kernel;
  unsigned grid[3], block[3];
  size_t dynamic_shared;
  int schedule;
  unsigned seed;
  int argument_count, buffer_count;
  void **values;            // address of each argument's value
  const size_t *sizes;      // bytes of each
  const char *kinds;        // 'p' pointer, 'i' integer or bool, 'f' floating
  const int *buffer_of;     // the buffer an argument points into, -1 if it does not
  const size_t *offset_of;  // and how far into it
  const Buffer *buffers;
  char *message;
  size_t message_bytes;
  uintptr_t fault_address;  // of the instruction at fault, relative to the library; 0 if there is none
  uintptr_t other_address;  // and of the one that it is in a race with
};

constexpr size_t DYNAMIC_ALIGNMENT = 128, ARGUMENT_ALIGNMENT = 16;
constexpr int SIGNALS[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};

inline const GuardedMemory *guarded_memory_at(const void *address) {
  if (machine.dynamic_shared.owns(address)) return &machine.dynamic_shared;
  for (const GuardedMemory *array : machine.static_shared)
    if (array->owns(address)) return array;
  for (const GuardedMemory &argument : machine.arguments)
    if (argument.owns(address)) return &argument;
  for (const GuardedMemory &stack : machine.stacks)
    if (stack.owns(address)) return &stack;
  return nullptr;
}

[[gnu::format(printf, 1, 2)]] inline void describe_fault(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  describe(format, arguments);
  va_end(arguments);
}

inline uintptr_t instruction_of(void *context) {
#if defined(__x86_64__)
  return static_cast<ucontext_t *>(context)->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
  return static_cast<ucontext_t *>(context)->uc_mcontext.pc;
#else
  return 0;
#endif
}

inline void on_fault(int signal, siginfo_t *info, void *context) {
  machine.fault_address = instruction_of(context);
  const GuardedMemory *memory = guarded_memory_at(info->si_addr);
  if (signal == SIGILL)
    describe_fault("misaligned access, or an index beyond an array of known size");
  else if (signal == SIGFPE)
    describe_fault("integer division by zero");
  else if (memory)
    describe_fault("access at byte %ld of %s, which has %zu bytes",
                   (long)(static_cast<unsigned char *>(info->si_addr) - memory->data), memory->label, memory->bytes);
  else
    describe_fault("access to the invalid address %p", info->si_addr);
  siglongjmp(machine.escape, 1);
}

// Catches the signals of a faulty kernel on a stack of their own, and puts everything back at the end.
struct FaultHandlers {
  struct sigaction previous[4];
  stack_t previous_stack;
  static constexpr size_t BYTES = 64 << 10;

  FaultHandlers() {
    static unsigned char *memory = new unsigned char[BYTES];
    stack_t own{};
    own.ss_sp = memory;
    own.ss_size = BYTES;
    sigaltstack(&own, &previous_stack);
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int i = 0; i < 4; ++i) sigaction(SIGNALS[i], &action, &previous[i]);
  }

  ~FaultHandlers() {
    for (int i = 0; i < 4; ++i) sigaction(SIGNALS[i], &previous[i], nullptr);
    sigaltstack(&previous_stack, nullptr);
  }
};

inline void map_arguments(const Request &request) {
  machine.arguments.resize(request.buffer_count);
  for (int i = 0; i < request.buffer_count; ++i) {
    const Buffer &buffer = request.buffers[i];
    GuardedMemory &memory = machine.arguments[i];
    const size_t phase = reinterpret_cast<size_t>(buffer.host) % ARGUMENT_ALIGNMENT;
    memory.map(buffer.label, buffer.bytes, ARGUMENT_ALIGNMENT, phase);
    memory.poison();
    memcpy(memory.data, buffer.host, buffer.bytes);
  }
  for (int i = 0; i < request.argument_count; ++i)
    if (request.buffer_of[i] >= 0)
      *static_cast<void **>(request.values[i]) = machine.arguments[request.buffer_of[i]].data + request.offset_of[i];
}

inline void return_arguments(const Request &request) {
  for (int i = 0; i < request.buffer_count; ++i) {
    const Buffer &buffer = request.buffers[i];
    const unsigned char *data = machine.arguments[i].data;
    if (buffer.writable) memcpy(buffer.host, data, buffer.bytes);
    else if (memcmp(buffer.host, data, buffer.bytes)) fail("the read-only %s was written", buffer.label);
  }
}

inline void run_grid() {
  const Index &grid = machine.grid_extent;
  const uint64_t count = uint64_t(grid.x) * grid.y * grid.z;
  for (uint64_t i = 0; i < count && !machine.failed; ++i) {
    const uint64_t block = machine.schedule == BACKWARD ? count - 1 - i : i;
    machine.block = {unsigned(block % grid.x), unsigned(block / grid.x % grid.y), unsigned(block / grid.x / grid.y)};
    run_block();
  }
}

inline uintptr_t within_library(uintptr_t address) {
  Dl_info library;
  const bool known = address && dladdr(reinterpret_cast<void *>(address), &library);
  return known ? address - reinterpret_cast<uintptr_t>(library.dli_fbase) : 0;
}

// Numbers below the normal ones count as zero in float arithmetic while a kernel runs: CuPy compiles with -ftz=true.
struct FlushToZero {
  const unsigned previous = float_control();
  FlushToZero() { set_float_control(previous | FLUSH_TO_ZERO); }
  ~FlushToZero() { set_float_control(previous); }
};

// 0 when the kernel ran; else the request holds a message.
inline int run(Request &request) {
  machine.kernel = request.kernel;
  machine.grid_extent = {request.grid[0], request.grid[1], request.grid[2]};
  machine.block_extent = {request.block[0], request.block[1], request.block[2]};
  machine.schedule = request.schedule;
  machine.random.seed(request.seed);
  machine.failed = false;
  machine.current = nullptr;
  machine.fault_address = machine.other_address = 0;
  if (request.dynamic_shared)
    machine.dynamic_shared.map("dynamic shared memory", request.dynamic_shared, DYNAMIC_ALIGNMENT);
  {
    FaultHandlers handlers;
    FlushToZero flush_to_zero;
    if (sigsetjmp(machine.escape, 1) == 0) run_grid();
  }
  machine.current = nullptr;
  if (!machine.failed) return_arguments(request);
  machine.dynamic_shared.unmap();
  for (GuardedMemory &argument : machine.arguments) argument.unmap();
  machine.arguments.clear();
  if (!machine.failed) return 0;
  snprintf(request.message, request.message_bytes, "%s", machine.message);
  request.fault_address = within_library(machine.fault_address);
  request.other_address = within_library(machine.other_address);
  return 1;
}

template <class Parameter> constexpr char kind_of() {
  return std::is_pointer_v<Parameter> ? 'p' : std::is_floating_point_v<Parameter> ? 'f' : 'i';
}

inline int refuse(Request &request, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int used = snprintf(request.message, request.message_bytes, "kernel %s: ", request.kernel);
  vsnprintf(request.message + used, request.message_bytes - used, format, arguments);
  va_end(arguments);
  return 1;
}

template <class... Parameters, size_t... I>
int launch(void (*kernel)(Parameters...), Request &request, std::index_sequence<I...>) {
  constexpr size_t sizes[] = {sizeof(Parameters)..., 0};
  constexpr char kinds[] = {kind_of<Parameters>()..., 0};
  if (request.argument_count != sizeof...(Parameters))
    return refuse(request, "%zu arguments wanted, %d given", sizeof...(Parameters), request.argument_count);
  for (int i = 0; i < request.argument_count; ++i)
    if (sizes[i] != request.sizes[i] || kinds[i] != request.kinds[i])
      return refuse(request, "argument %d: parameter of kind '%c' and %zu bytes, given '%c' and %zu bytes", i, kinds[i],
                    sizes[i], request.kinds[i], request.sizes[i]);
  map_arguments(request);
  struct Call {
    void (*kernel)(Parameters...);
    std::tuple<std::remove_cv_t<Parameters>...> arguments;
  } call{kernel, {*static_cast<std::remove_cv_t<Parameters> *>(request.values[I])...}};
  machine.entry = [](void *argument) {
    const Call &call = *static_cast<Call *>(argument);
    std::apply(call.kernel, call.arguments);
  };
  machine.entry_argument = &call;
  return run(request);
}

template <class... Parameters> int launch(void (*kernel)(Parameters...), Request *request) {
  return launch(kernel, *request, std::index_sequence_for<Parameters...>{});
}

}  // namespace emulator
