// SlotPool: limits the memory in which a server holds what ranks send it.
//
// A call takes one slot per slice of its window. A slot holds the contributions of all ranks to
// that slice. A server of several jobs has one process per job, and all of them share the pool:
//
//   shared page    | bytes of job 0 | bytes of job 1 | ...     their sum is at most the limit
//
// A process changes only its own number, and does so before it reads the sum. So two processes that
// take slots at the same time may both get too few, but never too many. Once the number of a dead
// process is set to 0, its slots are free.
//
// Lao et al., "ATP: in-network aggregation for multi-tenant learning", 2021: jobs take slots of a
// switch as long as there are any, without a share per job.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace q7x2 {

class SlotPool {
 public:
  /// A pool without a limit.
  SlotPool() = default;
  /// `fd`: a file that all processes of the pool map, with one 64-bit number per process. `own`:
  /// the index of this process's number. `bytes`: the limit of their sum. Throws
  /// Error(kInvalidArgument) if the file has no such number.
  SlotPool(int fd, size_t own, uint64_t bytes);

  /// Takes `wanted` slots, or as many as are left. Returns the number of slots taken.
  size_t take(size_t slot_bytes, size_t wanted);
  void give_back(size_t slot_bytes, size_t slots);

 private:
  struct Unmap {
    size_t bytes;
    void operator()(uint64_t* memory) const;
  };

  std::unique_ptr<uint64_t, Unmap> memory_{nullptr, Unmap{0}};
  std::span<uint64_t> held_;  // bytes taken, by process; empty: no limit
  size_t own_ = 0;
  uint64_t bytes_ = 0;
};

/// The slots of one call. The destructor gives them back if `give_back` was not called. The object
/// may outlive the server.
class TakenSlots {
 public:
  /// Takes `wanted` slots or as many as are left, but none if fewer than `least` are left.
  TakenSlots(std::shared_ptr<SlotPool> pool, size_t slot_bytes, size_t least, size_t wanted);
  ~TakenSlots() { give_back(); }
  TakenSlots(const TakenSlots&) = delete;
  TakenSlots& operator=(const TakenSlots&) = delete;

  size_t count() const { return count_; }
  /// Idempotent, but must not be called by two threads at once.
  void give_back();

 private:
  const std::shared_ptr<SlotPool> pool_;
  const size_t slot_bytes_;
  size_t count_ = 0;
};

}  // namespace q7x2
