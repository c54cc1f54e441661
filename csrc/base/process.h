// Forks and the end of the process: a process may be a forked copy of the one that made an object.
#pragma once

#include <cstdint>

namespace q7x2 {

/// Remembers the process in which it was made.
class ForkGuard {
 public:
  ForkGuard();
  /// True in a child made by fork. The child has copies of the memory only: the threads, and the
  /// other end of every connection, belong to the parent, and a lock may be held for ever.
  bool is_elsewhere() const;
  /// Throws Error(kAborted) in a forked child. `what` is the subject of the error message.
  void require(const char* what) const;

 private:
  const uint32_t forks_;
};

// An interpreter that is shutting down ends each thread that returns to it, by unwinding its stack.
// The destructors on that stack must not throw, so the process would abort. So threads must not
// return once the process ends.

/// The calling thread ends the process: from now on every other thread stops in `block_at_exit`.
void begin_ending();
/// Whether any thread has called `begin_ending` in this process.
bool is_ending();
/// Returns only in the thread that ends the process, or if the process does not end. Call it
/// without a lock.
void block_at_exit();

/// Calls `block_at_exit` in its destructor, for calls that return to the host program.
struct StayIfEnding {
  StayIfEnding() = default;
  ~StayIfEnding() { block_at_exit(); }
  StayIfEnding(const StayIfEnding&) = delete;
  StayIfEnding& operator=(const StayIfEnding&) = delete;
};

}  // namespace q7x2
