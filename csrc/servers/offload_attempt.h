// OffloadAttempt: what the task of a call that servers attempt is, beside its work
// (servers/server_group.h). It begins when the servers have said how many slots they have for it,
// and its end begins the vote on it.
//
// An attempt that the servers have no slots for, or that rank 0 does not want, ends at once, and
// touches no memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "base/error.h"
#include "servers/credit_grant.h"
#include "transport/task/input_latch.h"
#include "transport/ucx/locked.h"

namespace q7x2 {

class ServerGroup;

class OffloadAttempt {
 public:
  /// What this rank says of the attempt, and who waits for it.
  struct Ballot {
    std::shared_ptr<const ServerGroup> servers;
    std::shared_ptr<uint8_t> word;
    std::shared_ptr<InputLatch> cast;  ///< opens when the word is there
  };

  explicit OffloadAttempt(std::shared_ptr<CreditGrant> grant) : grant_(std::move(grant)) {}

  /// Precedes the attempt.
  const std::shared_ptr<CreditGrant>& grant() const { return grant_; }
  /// False until the servers have said how many slots it has, and where that failed.
  bool has_slots() const { return grant_->done() && !grant_->error(); }
  /// Only with slots, below.
  size_t slots() const { return grant_->slots(); }
  bool is_wanted() const { return grant_->is_wanted(); }
  /// It touches no memory.
  bool is_declined() const { return has_slots() && slots() == 0; }

  /// Fills in the ballot when the attempt is done: at once, if it is.
  void put_to_vote(Locked& locked, Ballot ballot);
  /// By the task, when it is done.
  void published(Locked& locked, const std::optional<Error>& error);

 private:
  void cast(Locked& locked, Ballot ballot) const;

  const std::shared_ptr<CreditGrant> grant_;
  Ballot ballot_;  // until the attempt is done
  bool is_done_ = false;
  std::optional<Error> error_;
};

}  // namespace q7x2
