// FailedCalls: collectives of a group that have failed alone, while the group goes on.
//
// If a collective fails on one rank, for a reason that concerns no other one, it fails on all
// ranks. The rank marks the number of the collective as failed, and tells each other rank once. A
// rank that hears of it for the first time does the same. If it already has its result, it keeps
// the result; if it has not begun the collective, the collective fails when it begins. If two ranks
// fail the same collective, each keeps its own error. No rank waits for an answer, and no timer is
// used: other collectives go on.
//
// A rank sends nothing for a collective after it has told that this one failed, and connections
// keep their order. So a rank that is told has received everything that the other one ever sent for
// the collective: the other one has *confirmed*. Until all ranks have confirmed, and for the next
// few hundred collectives,
//   - messages of the collective are received and dropped, which frees their senders' memory,
//   - the memory of a failed call stays with it until nothing can use it any more: a receive that
//     has matched its message ends with it, a send ends when its receiver has taken or dropped it,
//   - no collective begins that is TurnQueue::kMostAhead after one that a rank has not confirmed,
//     because the numbers in tags repeat.
//
// A rank that cannot confirm because it is dead, or its connection is, ends the group as always. A
// rank that is stopped is late: the call that waits for it ends the group at its deadline.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"

namespace q7x2 {

class FailedCalls {
 public:
  static constexpr uint64_t kNone = ~uint64_t{0};

  bool is_empty() const { return calls_.empty(); }
  /// Collective `number` has failed. The ranks in `told` were told, and will confirm.
  void add(uint64_t number, const Error& error, const std::set<int>& told);
  /// Why collective `number` has failed; null if it has not, or failed too long ago.
  const Error* find(uint64_t number) const;
  /// Whether it began too long ago for anything to be known about it. `begun`: the number of
  /// collectives that have begun.
  bool is_forgotten(uint64_t number, uint64_t begun) const;
  /// `rank` knows that collective `number` has failed. Returns false if it was not told before;
  /// from now on it counts as told.
  bool confirm(uint64_t number, int rank);
  /// `rank` has left, so it will confirm nothing more.
  void forget_rank(int rank);
  /// The oldest collective that a rank has not confirmed; kNone if all are confirmed.
  uint64_t oldest_unconfirmed() const;
  /// The ranks that have not confirmed `oldest_unconfirmed()`.
  std::set<int> unconfirmed_by() const;
  /// Forgets collectives that all ranks have confirmed and that are old. `begun`: as above.
  void prune(uint64_t begun);
  /// Calls `visit(number)` for each failed collective that is remembered.
  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (const auto& [number, call] : calls_) visit(number);
  }

 private:
  struct Call {
    Error error;
    std::set<int> told;
    std::set<int> unconfirmed;  // those of `told` that have not confirmed
  };
  std::map<uint64_t, Call> calls_;
};

}  // namespace q7x2
