// Verdicts: the votes of the ranks on attempts by servers, and what follows from them.
//
// When an attempt is done on a rank, the rank votes with one byte, its word: the attempt succeeded,
// the servers had no slots, rank 0 did not want it, or who has failed: a server with its name, if
// it is one of the first 252. The greatest word of all ranks counts. After a failure the server
// group is dropped, and further votes are ignored.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "servers/credit_grant.h"
#include "transport/group/group.h"

namespace q7x2 {

class Verdicts {
 public:
  /// `servers`: the server group, whose members from `ranks` on are servers of these names.
  Verdicts(std::shared_ptr<Group> servers, int ranks, std::vector<std::string> names)
      : group_(std::move(servers)), ranks_(ranks), names_(std::move(names)) {}

  const std::vector<std::string>& names() const { return names_; }

  /// The word of this rank for an attempt that had this grant and ended with `error`.
  uint8_t word_of(const CreditGrant& grant, const std::optional<Error>& error) const;
  /// Applies the greatest word of all ranks. Returns whether the attempt has produced the result.
  bool take(Locked& locked, uint8_t word);
  /// Whether the server group was dropped. Changes only between the same two calls on all ranks.
  bool is_dropped(Locked&) const { return is_dropped_; }

  // Any thread.

  /// Number of calls that were served so far.
  uint64_t served() const { return served_; }
  /// Number of calls for which the servers had no slots.
  uint64_t declined() const { return declined_; }

 private:
  const std::shared_ptr<Group> group_;
  const int ranks_;
  const std::vector<std::string> names_;
  bool is_dropped_ = false;
  std::atomic<uint64_t> served_{0};
  std::atomic<uint64_t> declined_{0};
};

}  // namespace q7x2
