// RecyclingAllocator: memory for large objects that are used during one call.
//
// malloc keeps blocks of up to 1 KiB for the next request of the same size. For larger ones it
// searches its lists, and merges all small free blocks. So memory that std::allocate_shared gets
// from this allocator returns to a stack for its own type. If another thread is using the stack,
// malloc is used.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <new>

namespace q7x2 {

template <typename T>
class RecyclingAllocator {
 public:
  using value_type = T;

  RecyclingAllocator() = default;
  template <typename Other>
  RecyclingAllocator(const RecyclingAllocator<Other>&) {}  // NOLINT(google-explicit-constructor)

  T* allocate(size_t count) {
    static_assert(alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
    void* const used = count == 1 ? stack().pop() : nullptr;
    return static_cast<T*>(used != nullptr ? used : ::operator new(count * sizeof(T)));
  }
  void deallocate(T* block, size_t count) noexcept {
    if (count != 1 || !stack().push(block)) ::operator delete(block);
  }
  bool operator==(const RecyclingAllocator&) const { return true; }

 private:
  class Stack {
   public:
    void* pop() {
      if (in_use_.test_and_set(std::memory_order_acquire)) return nullptr;
      void* const block = count_ > 0 ? blocks_[--count_] : nullptr;
      in_use_.clear(std::memory_order_release);
      return block;
    }
    bool push(void* block) {
      if (in_use_.test_and_set(std::memory_order_acquire)) return false;
      const bool has_room = count_ < kMost;
      if (has_room) blocks_[count_++] = block;
      in_use_.clear(std::memory_order_release);
      return has_room;
    }

   private:
#ifdef __SANITIZE_ADDRESS__
    static constexpr size_t kMost = 0;  // reusing a block would hide accesses after its end
#else
    static constexpr size_t kMost = 64;
#endif
    std::atomic_flag in_use_;
    size_t count_ = 0;
    std::array<void*, 64> blocks_;
  };

  // Never destroyed: the last object may outlive everything else.
  static Stack& stack() {
    static auto* const stack = new Stack;
    return *stack;
  }
};

}  // namespace q7x2
