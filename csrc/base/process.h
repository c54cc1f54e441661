// The life of the process: it may be a forked copy of the one that made an object, and it ends.
#pragma once

#include <cstdint>

namespace q7x2 {

/// Remembers in which process it was made.
class ForkGuard {
 public:
  ForkGuard();
  /// True in a child made by fork. The child has copies of the memory only: the threads, and the
  /// other end of every connection, belong to the parent, and a lock may be held for ever.
  bool is_elsewhere() const;
  /// Throws Error(kAborted) in a forked child. `what` is the subject of the sentence.
  void require(const char* what) const;

 private:
  const uint32_t forks_;
};

// An interpreter that is being taken apart ends each thread that comes back to it, by unwinding its
// stack. That stack has destructors which must not throw, so the process would abort. Threads must
// not come back once the process ends.

/// The calling thread ends the process: every other thread stays where it calls `block_at_exit`.
void begin_ending();
/// Whether `begin_ending` was called in this process, by any thread.
bool is_ending();
/// Does not return in a thread other than the one that ends the process. Call it without a lock.
void block_at_exit();

/// Calls `block_at_exit` when it goes, for calls that return into the host program.
struct StayIfEnding {
  StayIfEnding() = default;
  ~StayIfEnding() { block_at_exit(); }
  StayIfEnding(const StayIfEnding&) = delete;
  StayIfEnding& operator=(const StayIfEnding&) = delete;
};

}  // namespace q7x2
