// SlotPool: the memory that a server may use for what ranks send it.
//
// A call holds a slot for each slice of its window: the contributions of all ranks to that slice. A
// server of several jobs is a process for each job, and all of them share the pool:
//
//   shared page    | bytes of job 0 | bytes of job 1 | ...     their sum is at most the limit
//
// A process changes its own number alone, before it looks at the sum. So two that take slots at the
// same time may both get too few, but never too many, and what a dead process had is free once its
// number is set to 0.
// Lao et al., "ATP: in-network aggregation for multi-tenant learning", 2021: jobs take slots of a
// switch as long as there are some, without shares of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace q7x2 {

class SlotPool {
 public:
  /// Has as many slots as anybody wants.
  SlotPool() = default;
  /// `fd`: a file that all processes of the pool map, with a number for each of them, 64 bits long.
  /// `own`: which number is this process's. `bytes`: the limit of their sum. Throws
  /// Error(kInvalidArgument) for a file that has no such number.
  SlotPool(int fd, size_t own, uint64_t bytes);

  /// Takes slots, `wanted` or as many as are left. Returns how many.
  size_t take(size_t slot_bytes, size_t wanted);
  void give_back(size_t slot_bytes, size_t slots);

 private:
  struct Unmap {
    size_t bytes;
    void operator()(uint64_t* memory) const;
  };

  std::unique_ptr<uint64_t, Unmap> memory_{nullptr, Unmap{0}};
  std::span<uint64_t> held_;  // by process; empty: there is no limit
  size_t own_ = 0;
  uint64_t bytes_ = 0;
};

/// The slots of one call. Gives them back at its end at the latest, which may come after that of
/// the server.
class TakenSlots {
 public:
  /// Takes at least `least`, or none.
  TakenSlots(std::shared_ptr<SlotPool> pool, size_t slot_bytes, size_t least, size_t wanted);
  ~TakenSlots() { give_back(); }
  TakenSlots(const TakenSlots&) = delete;
  TakenSlots& operator=(const TakenSlots&) = delete;

  size_t count() const { return count_; }
  /// Idempotent, but not to be called by two threads at once.
  void give_back();

 private:
  const std::shared_ptr<SlotPool> pool_;
  const size_t slot_bytes_;
  size_t count_ = 0;
};

}  // namespace q7x2
