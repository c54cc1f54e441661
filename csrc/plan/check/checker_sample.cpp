// check_sample: what can be proved with the Plans of some ranks alone.
#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "plan/check/checker.h"
#include "plan/check/checker_group.h"
#include "plan/check/checker_structure.h"
#include "plan/check/checker_trace.h"

namespace q7x2 {
namespace {

using checker::CheckedGroup;

/// The ranks that the Plan exchanges messages with, at most `most` of them.
std::vector<int> some_peers(const Plan& plan, size_t most) {
  std::set<int> peers;
  for (const Op& op : plan.ops) {
    if (op.kind == OpKind::kSend || op.kind == OpKind::kRecv) peers.insert(op.peer);
  }
  const std::vector<int> all(peers.begin(), peers.end());
  const size_t count = std::min(all.size(), most);
  std::vector<int> some;
  for (size_t i = 0; i < count; ++i) some.push_back(all[i * all.size() / count]);
  return some;
}

/// Traces one output part per receiver; returns how many could be traced with `max_ops` ops.
int trace_results(const Schedule& schedule, std::span<const int> ranks, size_t max_ops) {
  const Plan header = schedule.header(0);
  CheckedGroup group(header, schedule.contract());
  checker::Trace trace(schedule, max_ops);
  int traced = 0;
  for (const int rank : ranks) {
    const Plan own = schedule.header(rank);
    group.hold(rank, own);
    const int parts = group.num_outputs(rank);
    if (header.collective == Collective::kBarrier || parts == 0 || !group.receives(rank)) continue;
    traced += trace.check(rank, parts / 2) ? 1 : 0;
  }
  return traced;
}

}  // namespace

int check_sample(const Schedule& schedule, std::span<const int> ranks, const SampleSize& size) {
  const Plan header = schedule.header(0);
  CheckedGroup group(header, schedule.contract());
  for (const int rank : ranks) {
    const Plan plan = schedule.project(rank);
    group.hold(rank, plan);
    checker::check_structure(group, rank);
    for (const int peer : some_peers(plan, size.peers)) {
      if (peer < 0 || peer >= group.size() || peer == rank) {
        group.fail(rank, "exchanges messages with rank " + std::to_string(peer));
      }
      const Plan other = schedule.project(peer);
      group.hold(peer, other);
      checker::check_messages(group, rank, peer);
      checker::check_messages(group, peer, rank);
      group.release(peer);
    }
    group.release(rank);
  }
  return trace_results(schedule, ranks, size.ops);
}

}  // namespace q7x2
