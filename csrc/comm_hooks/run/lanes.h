// Lanes: the order in which a hook's collectives start, the same on every rank.
//
// c10d matches the collectives of a group by the order of the calls. DDP passes its buckets in one
// order on all ranks, so the first collective of each bucket is safe. The second one may start when
// the first is complete, and that happens in another order on each rank:
//
//   rank 0:  P0 P1    Q0    Q1 P2 ...        rank 1:  P0 P1 P2    Q1 Q0 ...
//
// So the p-th collectives of all buckets have their own lane, which is a separate process group,
// and within a lane buckets start strictly in the order of their tickets. Lanes are independent of
// each other, and a bucket only waits for the same phase of the buckets before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

namespace q7x2 {

/// Not thread-safe: its owner must serialise the calls.
class Lanes {
 public:
  using Ticket = uint64_t;

  explicit Lanes(size_t count) : lanes_(count) {}

  size_t count() const { return lanes_.size(); }
  /// The next bucket's ticket. Each ticket must use each lane once, by `start` or by `leave`.
  Ticket enter() { return next_++; }
  /// Calls `start` as soon as all earlier tickets have started in `lane` or left it, possibly at
  /// once. `start` must not throw.
  void start(Ticket ticket, size_t lane, std::function<void()> start);
  /// `ticket` starts nothing in `first_lane` and later lanes. Has no effect on lanes that it has
  /// used.
  void leave(Ticket ticket, size_t first_lane);

 private:
  struct Lane {
    Ticket turn = 0;
    std::map<Ticket, std::function<void()>> waiting;  // an empty function: it has left
  };

  static void advance(Lane& lane);

  Ticket next_ = 0;
  std::vector<Lane> lanes_;
};

}  // namespace q7x2
