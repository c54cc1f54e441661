// ServerGroup: a second transport group of a process group. Its members are the n ranks, followed
// by the servers that serve them.
//
// A call that servers serve is an *attempt*: a collective in the server group. Either its Plan has
// the servers as helpers (plan/algorithms/servers.cpp), or it is an all-reduce of blocks that
// servers own (executor/sparse/sparse_all_reduce.h). The ranks choose it by themselves, on equal
// Fabrics, and rank 0 sends an order to the servers. The servers say how many slots of memory they
// have for it (servers/credit_grant.h). If there are too few, nothing is attempted. If a member
// dies, the server group fails on all members at once. So after an attempt the ranks vote in their
// own group. If it was declined or failed on any rank, all ranks run the call in their own group,
// on the original input (servers/offloaded_call.h). After a failure the server group is dropped: no
// more calls are attempted.
//
// Whether servers help with blocks depends on how many blocks are not zero, which no rank knows
// beforehand. So the ranks attempt all calls that servers could help with, and rank 0 orders the
// servers to serve the call or to leave it to the ranks, by the number of blocks of the last such
// call (plan/cost/row_costs.h). The first one is left to the ranks.
//
//   server group   | grant | attempt: ranks -> servers -> ranks |
//   group                                                       | vote: a byte | the call |
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/recent.h"
#include "executor/call/collective_call.h"
#include "executor/probe/survey.h"
#include "executor/sparse/sparse_call.h"
#include "fabric/fabric.h"
#include "plan/choose/plan_cache.h"
#include "plan/choose/planner.h"
#include "servers/offloaded_call.h"
#include "servers/verdicts.h"
#include "transport/group/group.h"

namespace q7x2 {

class SlotPool;

/// Returns the Fabric of the ranks with its servers, equal on all members. All members of a new
/// server group must call it. `of_ranks`: on rank 0, the group's Fabric. Its servers have names,
/// and rates if these are known. Unknown rates are measured, unless Q7X2_PROBE=0 or Q7X2_FABRIC is
/// set.
std::shared_ptr<const Fabric> survey_servers(const std::shared_ptr<Group>& servers, int ranks,
                                             const Fabric* of_ranks, const SurveyOptions& options);

class ServerGroup {
 public:
  /// `planner`: this member's, for a Fabric with the servers.
  ServerGroup(std::shared_ptr<Group> group, int ranks, std::shared_ptr<Planner> planner,
              const std::string& environment);

  Group& group() const { return *group_; }
  const std::shared_ptr<Group>& group_pointer() const { return group_; }
  int ranks() const { return ranks_; }
  int servers() const { return group_->world_size() - ranks_; }
  const std::vector<std::string>& names() const { return verdicts_->names(); }
  /// The Fabric of the ranks, with the servers.
  std::shared_ptr<const Fabric> fabric() const { return planner_->fabric(); }

  /// Whether servers attempt the call. Equal on all ranks, also after the server group was dropped.
  /// The first call of a kind is planned here.
  bool serves(const CollectiveCall& call) const;
  /// Whether this rank knows already that attempts fail before they touch any memory. Any thread.
  bool is_broken() const { return group_->error().has_value(); }
  /// Makes the attempt of a call that it `serves`. It must be submitted next. Rank 0 sends the
  /// order. `saved`: a copy of the memory that the attempt may overwrite; empty: it overwrites
  /// nothing.
  std::shared_ptr<OffloadedCall> attempt(const CollectiveCall& call, Region saved,
                                         std::shared_ptr<void> keep_alive,
                                         std::chrono::milliseconds timeout);

  /// The same as `serves`, for an all-reduce of the blocks of a tensor of `bytes` bytes.
  bool serves_blocks(size_t bytes) const;
  /// `tensor`: the data of `call`. Sets the call's `census`: the number of blocks that it counts
  /// decides about the next call, whether servers or ranks have added them up.
  std::shared_ptr<OffloadedCall> attempt_blocks(SparseCall& call, std::span<std::byte> tensor,
                                                std::shared_ptr<void> keep_alive,
                                                std::chrono::milliseconds timeout);

  /// From now on the ranks choose on another Fabric, which has no servers or as many as before. All
  /// ranks must call it between the same two collectives. Throws Error(kInvalidArgument).
  void set_fabric(std::shared_ptr<const Fabric> fabric);

  /// The choices for the kinds of calls that it serves.
  std::vector<PlanCache::Record> records() const { return plans_->records_with_helpers(); }
  /// Number of calls that were served so far. Any thread.
  uint64_t served() const { return verdicts_->served(); }
  /// Number of calls for which the servers had no slots. Any thread.
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
  std::mutex mutex_;  // guards `censuses_`
  // by bytes and dtype
  Recent<std::pair<size_t, DType>, std::shared_ptr<RowCensus>> censuses_{256};
};

/// Runs a server's side of a server group: carries out rank 0's orders until the ranks have left.
/// Returns the number of calls that it has declined because it had no slots. Throws the server
/// group's error, or Error(kMismatch) for an invalid order.
uint64_t follow_orders(const std::shared_ptr<Group>& servers, int ranks,
                       std::shared_ptr<const Fabric> fabric, const std::string& environment,
                       const std::shared_ptr<SlotPool>& pool);

}  // namespace q7x2
