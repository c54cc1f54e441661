// A fibre: a stack of its own that runs a function until that gives the processor back.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>
#include <functional>

namespace q7x2::fibres {

/// Memory for the stacks of many fibres. Each one ends in a page that faults.
class Stacks {
 public:
  static constexpr size_t kStackBytes = size_t{64} << 10;

  explicit Stacks(size_t count);
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  std::byte* stack(size_t index) const;
  bool contains(const void* address) const;
  /// Of an address within.
  size_t index_of(const void* address) const;

 private:
  size_t slot_bytes_;
  size_t bytes_;
  std::byte* memory_;
};

/// Belongs to one thread of the CPU. The function is started by the first `resume`, and every
/// `resume` returns at its next `suspend` or at its end.
class Fibre {
 public:
  explicit Fibre(std::byte* stack);
  ~Fibre();
  Fibre(const Fibre&) = delete;
  Fibre& operator=(const Fibre&) = delete;

  /// What the next `resume` starts. A function that has not returned is forgotten as it is, without
  /// destructors.
  void start(std::function<void()> function);
  void resume();
  /// Called by the function.
  void suspend();

 private:
  static void entry(unsigned high, unsigned low);
  void enter();
  void leave();

  std::byte* stack_;
  std::function<void()> function_;
  bool fresh_ = true;
  ucontext_t context_ = {};
  ucontext_t caller_ = {};
  jmp_buf jump_ = {};
  jmp_buf caller_jump_ = {};
  void* sanitized_ = nullptr;         // ThreadSanitizer's fibre
  void* sanitized_caller_ = nullptr;  // and that of whoever resumes
  void* fake_stack_ = nullptr;        // AddressSanitizer's
  void* caller_fake_stack_ = nullptr;
  const void* caller_stack_ = nullptr;
  size_t caller_stack_bytes_ = 0;
};

}  // namespace q7x2::fibres
