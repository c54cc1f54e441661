// ServerGroup: one more transport group beside a process group, whose members are its n ranks and
// then the servers that serve it.
//
// A call that servers serve is an *attempt*: a collective in the server group, by a Plan that has
// the servers as helpers (plan/algorithms/servers.cpp), or an all-reduce of blocks that servers own
// (executor/sparse/sparse_all_reduce.h). Rank 0 orders it from the servers; the ranks choose it by
// themselves, on equal Fabrics. The servers say how many slots of memory they have for it
// (servers/credit_grant.h). If there are too few, nothing is attempted. The server group fails on
// all members at once, if one of them dies. So after the attempt the ranks vote in their own group,
// and where it was declined or anybody has failed, all of them run the call in their own group, on
// the input as it was (servers/offloaded_call.h). After a failure the server group is dropped: no
// call is attempted any more.
//
// Whether servers help with blocks depends on how many there are, which no rank knows beforehand.
// So calls are attempted that servers could help with, and rank 0 orders by what it has seen of the
// last such call whether they do (plan/cost/row_costs.h). The first one is left to the ranks.
//
//   server group   | grant | attempt: ranks -> servers -> ranks |
//   group                                                       | vote: a byte | the call |
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/recent.h"
#include "executor/call/collective_call.h"
#include "executor/probe/survey.h"
#include "executor/sparse/row_source.h"
#include "executor/sparse/sparse_call.h"
#include "fabric/fabric.h"
#include "plan/choose/plan_cache.h"
#include "plan/choose/planner.h"
#include "servers/offloaded_call.h"
#include "servers/verdicts.h"
#include "transport/group/group.h"

namespace q7x2 {

class SlotPool;

/// All members of a new server group call it. Returns a Fabric of the ranks with its servers, equal
/// on all of them. `of_ranks`: on rank 0 the group's Fabric, whose servers have names, and rates
/// where they are known. Rates that are not are measured, unless Q7X2_PROBE=0 or Q7X2_FABRIC says
/// otherwise.
std::shared_ptr<const Fabric> survey_servers(const std::shared_ptr<Group>& servers, int ranks,
                                             const Fabric* of_ranks, const SurveyOptions& options);

class ServerGroup {
 public:
  /// `planner`: of this member, on a Fabric with the servers.
  ServerGroup(std::shared_ptr<Group> group, int ranks, std::shared_ptr<Planner> planner,
              const std::string& environment);

  Group& group() const { return *group_; }
  const std::shared_ptr<Group>& group_pointer() const { return group_; }
  int ranks() const { return ranks_; }
  int servers() const { return group_->world_size() - ranks_; }
  const std::vector<std::string>& names() const { return verdicts_->names(); }
  /// Of the ranks, with the servers.
  std::shared_ptr<const Fabric> fabric() const { return planner_->fabric(); }

  /// Whether the call is attempted by servers: equal on all ranks, also when the server group has
  /// been dropped. Plans on the first call of a kind.
  bool serves(const CollectiveCall& call) const;
  /// Whether this rank knows already that attempts fail, before they touch any memory. Any thread.
  bool is_broken() const { return group_->error().has_value(); }
  /// The attempt, to be submitted next. Rank 0 sends the order. For calls that it serves. `saved`:
  /// a copy of what it may overwrite; empty: it overwrites nothing.
  std::shared_ptr<OffloadedCall> attempt(const CollectiveCall& call, Region saved,
                                         std::shared_ptr<void> keep_alive,
                                         std::chrono::milliseconds timeout);

  /// The same of an all-reduce of the blocks of so many bytes.
  bool serves_blocks(size_t bytes) const;
  /// `tensor`: what `call` is about. The call gets a `census`: what is seen of its blocks, whoever
  /// adds them up, decides about the next one.
  std::shared_ptr<OffloadedCall> attempt_blocks(SparseCall& call, std::span<std::byte> tensor,
                                                std::shared_ptr<void> keep_alive,
                                                std::chrono::milliseconds timeout);

  /// Ranks choose by another Fabric from now on, which has no servers or as many as before. All
  /// ranks must call it between the same two collectives. Throws Error(kInvalidArgument).
  void set_fabric(std::shared_ptr<const Fabric> fabric);

  /// What was chosen for the kinds of calls that it serves.
  std::vector<PlanCache::Record> records() const { return plans_->records_with_helpers(); }
  /// Calls that were served so far. Any thread.
  uint64_t served() const { return verdicts_->served(); }
  /// Those for which servers had no slots. Any thread.
  uint64_t declined() const { return verdicts_->declined(); }

 private:
  std::shared_ptr<OffloadAttempt> new_attempt(std::chrono::milliseconds timeout) const;
  std::shared_ptr<RowCensus> census_of(const SparseCall& call);
  bool wants_blocks(const RowCensus& census) const;

  const std::shared_ptr<Group> group_;
  const int ranks_;
  const std::shared_ptr<Planner> planner_;
  const std::shared_ptr<PlanCache> plans_;
  const std::shared_ptr<Verdicts> verdicts_;
  std::mutex mutex_;  // guards the next one
  Recent<std::pair<size_t, DType>, std::shared_ptr<RowCensus>> censuses_{256};  // of blocks
};

/// A server's side of a server group: carries out rank 0's orders until the ranks have left.
/// Returns how many calls it has declined for want of slots. `pool`: must stay. Throws the server
/// group's error, and Error(kMismatch) for orders that make no sense.
uint64_t follow_orders(const std::shared_ptr<Group>& servers, int ranks,
                       std::shared_ptr<const Fabric> fabric, const std::string& environment,
                       const std::shared_ptr<SlotPool>& pool);

}  // namespace q7x2
