// What GCC calls at each access of code that is compiled with -fsanitize=thread. Takes the place of
// ThreadSanitizer's library, in programs that are not linked with it.
#include <cstddef>
#include <cstdint>

#include "fibres/grid.h"

namespace {

void note(const void* address, size_t bytes, bool write) {
  if (q7x2::fibres::in_kernel()) q7x2::fibres::note_access(address, bytes, write);
}

}  // namespace

extern "C" {

// NOLINTBEGIN(bugprone-reserved-identifier)
#define Q7X2_CALLBACKS(bytes)                         \
  void __tsan_read##bytes(void* address) {            \
    note(address, bytes, false);                      \
  }                                                   \
  void __tsan_write##bytes(void* address) {           \
    note(address, bytes, true);                       \
  }                                                   \
  void __tsan_unaligned_read##bytes(void* address) {  \
    note(address, bytes, false);                      \
  }                                                   \
  void __tsan_unaligned_write##bytes(void* address) { \
    note(address, bytes, true);                       \
  }
Q7X2_CALLBACKS(1)
Q7X2_CALLBACKS(2)
Q7X2_CALLBACKS(4)
Q7X2_CALLBACKS(8)
Q7X2_CALLBACKS(16)
#undef Q7X2_CALLBACKS
void __tsan_read_range(void* address, size_t bytes) {
  note(address, bytes, false);
}
void __tsan_write_range(void* address, size_t bytes) {
  note(address, bytes, true);
}
// Of atomics, which fibres::note_atomic has noted.
uint32_t __tsan_atomic32_load(const volatile uint32_t* address, int) {
  return *address;
}
void __tsan_atomic32_store(volatile uint32_t* address, uint32_t value, int) {
  *address = value;
}
uint64_t __tsan_atomic64_load(const volatile uint64_t* address, int) {
  return *address;
}
void __tsan_atomic64_store(volatile uint64_t* address, uint64_t value, int) {
  *address = value;
}
void __tsan_vptr_update(void**, void*) {}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
// NOLINTEND(bugprone-reserved-identifier)
}
