// glibc's swapcontext calls the kernel twice for the signal mask. _setjmp and _longjmp do not, so
// contexts only start fibres. The sanitizers know contexts, and want to be told of each switch.
#undef _FORTIFY_SOURCE  // its longjmp refuses to leave for another stack

#include "fibres/fibre.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <new>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(Q7X2_FIBRES_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace q7x2::fibres {
namespace {

size_t page_bytes() {
  return static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

Stacks::Stacks(size_t count)
    : slot_bytes_(page_bytes() + kStackBytes), bytes_(count * slot_bytes_) {
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  memory_ = static_cast<std::byte*>(memory);
  for (size_t i = 0; i < count; ++i) {
    if (mprotect(memory_ + i * slot_bytes_, page_bytes(), PROT_NONE) != 0) throw std::bad_alloc();
  }
}

Stacks::~Stacks() {
  munmap(memory_, bytes_);
}

std::byte* Stacks::stack(size_t index) const {
  return memory_ + index * slot_bytes_ + page_bytes();
}

bool Stacks::contains(const void* address) const {
  const auto* at = static_cast<const std::byte*>(address);
  return at >= memory_ && at < memory_ + bytes_;
}

size_t Stacks::index_of(const void* address) const {
  return static_cast<size_t>(static_cast<const std::byte*>(address) - memory_) / slot_bytes_;
}

Fibre::Fibre(std::byte* stack) : stack_(stack) {
#if defined(Q7X2_FIBRES_TSAN)
  sanitized_ = __tsan_create_fiber(0);
#endif
}

Fibre::~Fibre() {
#if defined(Q7X2_FIBRES_TSAN)
  __tsan_destroy_fiber(sanitized_);
#endif
}

void Fibre::start(std::function<void()> function) {
  function_ = std::move(function);
  fresh_ = true;
}

void Fibre::entry(unsigned high, unsigned low) {
  auto* fibre = reinterpret_cast<Fibre*>(static_cast<uintptr_t>(high) << 32 | low);
  fibre->enter();
  fibre->function_();
  while (true) fibre->leave();
}

/// The first thing on this stack after a switch to it.
void Fibre::enter() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack_, &caller_stack_, &caller_stack_bytes_);
#endif
}

void Fibre::leave() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&fake_stack_, caller_stack_, caller_stack_bytes_);
  swapcontext(&context_, &caller_);
  enter();
#elif defined(Q7X2_FIBRES_TSAN)
  __tsan_switch_to_fiber(sanitized_caller_, __tsan_switch_to_fiber_no_sync);
  swapcontext(&context_, &caller_);
#else
  if (_setjmp(jump_) == 0) _longjmp(caller_jump_, 1);
#endif
}

void Fibre::suspend() {
  leave();
}

void Fibre::resume() {
  const bool start = std::exchange(fresh_, false);
  if (start) {
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack_;
    context_.uc_stack.ss_size = Stacks::kStackBytes;
    context_.uc_link = nullptr;
    const auto address = reinterpret_cast<uintptr_t>(this);
    makecontext(&context_, reinterpret_cast<void (*)()>(&Fibre::entry), 2,
                static_cast<unsigned>(address >> 32), static_cast<unsigned>(address));
  }
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&caller_fake_stack_, stack_, Stacks::kStackBytes);
  swapcontext(&caller_, &context_);
  __sanitizer_finish_switch_fiber(caller_fake_stack_, nullptr, nullptr);
#elif defined(Q7X2_FIBRES_TSAN)
  sanitized_caller_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(sanitized_, __tsan_switch_to_fiber_no_sync);
  swapcontext(&caller_, &context_);
#else
  if (_setjmp(caller_jump_) != 0) return;
  if (start) setcontext(&context_);
  _longjmp(jump_, 1);
#endif
}

}  // namespace q7x2::fibres
