// Annex: one more transport group beside a process group, whose members are its n ranks and then
// the servers that serve it.
//
// A call that servers serve is an *attempt*: a collective in the annex, by a Plan that has the
// servers as helpers (plan/servers.cpp). Rank 0 orders it from the servers; the ranks choose it by
// themselves, on equal Fabrics. The servers say how many slots of memory they have for it
// (executor/slot_grant.h). If there are too few, nothing is attempted. The annex fails on all
// members at once, if one of them dies. So after the attempt the ranks vote in their own group, and
// where it was declined or anybody has failed, all of them run the call in their own group, and
// from a copy of the input (executor/collective_served.cpp). After a failure the annex is dropped:
// no call is attempted any more.
//
//   annex   | grant | attempt: ranks -> servers -> ranks |
//   group                                                | vote: a byte | the call, if need be |
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "executor/collective_call.h"
#include "executor/survey.h"
#include "fabric/fabric.h"
#include "plan/plan_book.h"
#include "plan/planner.h"
#include "transport/group.h"

namespace q7x2 {

class CollectiveTask;
class SlotPool;

/// All members of a new annex call it. Returns a Fabric of the ranks with its servers, equal on all
/// of them. `of_ranks`: on rank 0 the group's Fabric, whose servers have names, and rates where
/// they are known. Rates that are not are measured, unless Q7X2_PROBE=0 or Q7X2_FABRIC says
/// otherwise.
std::shared_ptr<const Fabric> survey_annex(const std::shared_ptr<Group>& annex, int ranks,
                                           const Fabric* of_ranks, const SurveyOptions& options);

class Annex {
 public:
  /// `planner`: of this member, on a Fabric with the servers.
  Annex(std::shared_ptr<Group> group, int ranks, std::shared_ptr<Planner> planner,
        const std::string& environment);

  Group& group() const { return *group_; }
  const std::shared_ptr<Group>& group_pointer() const { return group_; }
  int ranks() const { return ranks_; }
  int servers() const { return group_->world_size() - ranks_; }
  const std::vector<std::string>& names() const { return names_; }
  /// Of the ranks, with the servers.
  std::shared_ptr<const Fabric> fabric() const { return planner_->fabric(); }

  /// Whether the call is attempted by servers: equal on all ranks, also when the annex has been
  /// dropped. Plans on the first call of a kind.
  bool serves(const CollectiveCall& call) const;
  /// Whether this rank knows already that attempts fail, before they touch any memory. Any thread.
  bool is_broken() const { return group_->error().has_value(); }
  /// The attempt, to be submitted next. Rank 0 sends the order. For calls that it serves.
  std::shared_ptr<CollectiveTask> attempt(const CollectiveCall& call,
                                          std::shared_ptr<void> keep_alive,
                                          std::chrono::milliseconds timeout);

  /// What a rank says of its attempt, which is done: 0 for a success, 1 where servers have no room
  /// for it, else who has failed. The greatest word of all ranks counts.
  uint8_t vote_of(const CollectiveTask& attempt) const;
  /// Takes the word of all ranks. True: the call was served. After a failure attempts count no
  /// more.
  bool take_verdict(Locked& locked, uint8_t verdict);
  /// Changes only between the same two calls on all ranks, in their order.
  bool is_dropped(Locked&) const { return is_dropped_; }

  /// Ranks choose by another Fabric from now on, which has no servers or as many as before. All
  /// ranks must call it between the same two collectives. Throws Error(kInvalidArgument).
  void set_fabric(std::shared_ptr<const Fabric> fabric);

  /// What was chosen for the kinds of calls that it serves.
  std::vector<PlanBook::Record> records() const { return book_->records_with_helpers(); }
  /// Calls that were served so far. Any thread.
  uint64_t served() const { return served_; }
  /// Those for which servers had no slots. Any thread.
  uint64_t declined() const { return declined_; }

 private:
  const std::shared_ptr<Group> group_;
  const int ranks_;
  const std::shared_ptr<Planner> planner_;
  const std::shared_ptr<PlanBook> book_;
  std::vector<std::string> names_;  // of the servers
  bool is_dropped_ = false;
  std::atomic<uint64_t> served_{0};
  std::atomic<uint64_t> declined_{0};
};

/// A server's side of an annex: carries out rank 0's orders until the ranks have left. Returns how
/// many calls it has declined for want of slots. `pool`: must stay. Throws the annex's error, and
/// Error(kMismatch) for orders that make no sense.
uint64_t follow_orders(const std::shared_ptr<Group>& annex, int ranks,
                       std::shared_ptr<const Fabric> fabric, const std::string& environment,
                       const std::shared_ptr<SlotPool>& pool);

}  // namespace q7x2
