// Departure: which ranks of a group have left it in good order, and which collectives cannot
// complete without them.
//
// A rank that leaves says how many collectives it has begun, and which of them it has not ended.
// Those, and all later ones, cannot complete. For the others it has sent everything that the
// remaining ranks need.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "transport/peer/control.h"

namespace q7x2 {

class Membership;

class Departure {
 public:
  explicit Departure(int world_size);

  /// A goodbye of `rank` has arrived. `comes_twice`: it is sent on two connections, because it may
  /// overtake messages on the other one. Returns true if this is the last one.
  bool is_last_goodbye(int rank, bool comes_twice);
  /// `rank` has left. It had begun the first `begun` collectives, and not ended those in `unended`.
  void leave(int rank, uint64_t begun, const Unended& unended = {});
  /// `rank` is about to leave: it begins no collective after its first `begun` ones.
  void announce(int rank, uint64_t begun);

  bool has_left(int rank) const { return departed_[static_cast<size_t>(rank)].has_value(); }
  /// A rank that has left before it ended collective `number`; -1: none has.
  int find_missing(uint64_t number) const;
  /// Whether `rank` has left before it ended collective `number`.
  bool misses(int rank, uint64_t number) const;
  /// Whether all ranks have begun collective `number`, or may still begin it.
  bool may_complete(uint64_t number) const;
  /// Whether `rank` is about to leave.
  bool is_leaving(int rank) const { return last_calls_[static_cast<size_t>(rank)].has_value(); }

 private:
  static constexpr uint64_t kNever = ~uint64_t{0};

  struct Departed {
    uint64_t begun;
    Unended unended;
  };

  std::vector<std::optional<Departed>> departed_;  // by rank; empty: it has not left
  // By rank: the number of collectives that it will have begun when it leaves.
  std::vector<std::optional<uint64_t>> last_calls_;
  std::set<int> half_departed_;     // ranks whose second goodbye has not arrived
  uint64_t first_missed_ = kNever;  // the first collective that a rank has not ended before it left
};

/// The error of `call`, which needs `rank`, if that rank has left.
Error left_error(const Membership& members, int rank, const std::string& call);

}  // namespace q7x2
