// FailedCalls: collectives of a group that have failed alone, while the group goes on.
//
// A collective that fails on one rank, for a reason that concerns no other one, fails on all ranks.
// The rank marks the number of the collective as failed, and tells each other rank once. A rank
// that hears of it for the first time does the same. One that has its result already keeps it, and
// one that has not begun the collective gets the error when it does. If two ranks fail the same
// collective, each keeps its own error. Nobody waits for an answer, and no clock runs: other
// collectives go on.
//
// A rank sends nothing for a collective after it has said that this one failed, and connections
// keep their order. So whoever hears it from that rank has all that the rank ever sent for the
// collective, and the rank has *confirmed*. Until all have confirmed, and for the next few hundred
// collectives,
//   - messages of the collective are received into nothing, which frees their senders' memory,
//   - the memory of a call that failed stays with it until nothing can touch it any more: a receive
//     that has met its message ends with it, a send ends when its receiver has taken or dropped it,
//   - no collective begins that is TurnQueue::kMostAhead after one that a rank has not confirmed,
//     because the numbers in tags come again.
//
// A rank that cannot confirm because it is dead, or its connection is, ends the group as always.
// One that is stopped is late: the call that waits for it ends the group at its deadline.
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
  /// Collective `number` has failed. The ranks in `told` will confirm that.
  void add(uint64_t number, const Error& error, const std::set<int>& told);
  /// Why collective `number` has failed; null: it has not, or long ago.
  const Error* find(uint64_t number) const;
  /// Whether it began so long ago that nothing is known of it any more. `begun`: the number of
  /// collectives that have begun.
  bool is_forgotten(uint64_t number, uint64_t begun) const;
  /// `rank` knows that collective `number` has failed. False: it was not told before; from now on
  /// it counts as told.
  bool confirm(uint64_t number, int rank);
  /// `rank` has left, and says nothing more.
  void forget_rank(int rank);
  /// The oldest collective that a rank has not confirmed; kNone: there is none.
  uint64_t oldest_unconfirmed() const;
  /// The ranks that have not confirmed that one.
  std::set<int> unconfirmed_by() const;
  /// Forgets what all have confirmed and what is long ago. `begun`: as above.
  void prune(uint64_t begun);
  /// Calls `visit(number)` for each.
  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (const auto& [number, call] : calls_) visit(number);
  }

 private:
  struct Call {
    Error error;
    std::set<int> told;
    std::set<int> unconfirmed;  // of those
  };
  std::map<uint64_t, Call> calls_;
};

}  // namespace q7x2
