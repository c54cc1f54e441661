#include "failing_allocation.h"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

thread_local int allocations_left = 0;

}  // namespace

namespace q7x2::test {

void fail_allocation(int nth) {
  allocations_left = nth;
}

bool allocation_will_fail() {
  return allocations_left > 0;
}

}  // namespace q7x2::test

void* operator new(size_t bytes) {
  if (allocations_left > 0 && --allocations_left == 0) throw std::bad_alloc();
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}

// AddressSanitizer would bring its own, and not know the memory when it is freed below.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return ::operator new(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void operator delete(void* memory) noexcept {
  std::free(memory);
}

void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
