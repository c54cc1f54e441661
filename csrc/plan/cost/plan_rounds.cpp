#include "plan/cost/plan_rounds.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "plan/ir/dag_window.h"

namespace q7x2 {
namespace {

/// One slice of all Plans, in an order in which every message is sent before it is received.
class Depths {
 public:
  explicit Depths(std::span<const Plan> plans) : plans_(plans) {
    std::vector<DagWindow> dags;
    for (const Plan& plan : plans) {
      depths_.emplace_back(plan.ops.size());
      dags.emplace_back(plan, 1, 1).admit();
    }
    std::vector<std::vector<DagWindow::Step>> blocked(plans.size());  // receives
    for (bool moves = true; moves;) {
      moves = false;
      for (size_t rank = 0; rank < plans.size(); ++rank) {
        std::vector<DagWindow::Step> steps = std::exchange(blocked[rank], {});
        for (size_t i = 0;; ++i) {
          while (const auto step = dags[rank].next()) steps.push_back(*step);
          if (i == steps.size()) break;
          if (run(rank, steps[i].op)) {
            dags[rank].complete(steps[i]);
            moves = true;
          } else {
            blocked[rank].push_back(steps[i]);
          }
        }
      }
    }
  }

  /// Messages that must have arrived before the op starts, one after the other.
  int of(size_t rank, size_t op) const { return depths_[rank][op]; }

 private:
  bool run(size_t rank, uint32_t id) {
    const Op& op = plans_[rank].ops[id];
    int& depth = depths_[rank][id];
    const auto self = static_cast<int>(rank);
    if (op.kind == OpKind::kSend) sent_[{self, op.peer, op.message}] = depth;
    if (op.kind == OpKind::kRecv) {
      const auto sent = sent_.find({op.peer, self, op.message});
      if (sent == sent_.end()) return false;
      depth = std::max(depth, sent->second + 1);
    }
    for (const uint32_t after : plans_[rank].successors_of(op)) {
      depths_[rank][after] = std::max(depths_[rank][after], depth);
    }
    return true;
  }

  std::span<const Plan> plans_;
  std::vector<std::vector<int>> depths_;           // by rank and op
  std::map<std::tuple<int, int, int>, int> sent_;  // by sender, receiver and id
};

/// By receiver, sender and id: messages that are folded.
std::set<std::tuple<int, int, int>> folded_messages(std::span<const Plan> plans) {
  std::set<std::tuple<int, int, int>> folded;
  for (const Plan& plan : plans) {
    for (const Op& op : plan.ops) {
      if (op.kind != OpKind::kRecv) continue;
      for (const uint32_t after : plan.successors_of(op)) {
        const Op& next = plan.ops[after];
        const auto sources = plan.sources_of(next);
        if (next.kind == OpKind::kReduce &&
            std::ranges::find(sources, op.destination) != sources.end()) {
          folded.insert({plan.rank, op.peer, op.message});
        }
      }
    }
  }
  return folded;
}

}  // namespace

std::vector<Round> rounds_of(std::span<const Plan> plans) {
  const Depths depths(plans);
  const auto folded = folded_messages(plans);
  struct Sent {
    std::map<std::tuple<int, int, uint32_t>, uint32_t> edges;  // by sender, receiver and weight
    std::set<std::pair<int, uint16_t>> stages;
    std::set<int> senders;
    size_t folds = 0, messages = 0;
  };
  std::map<int, Sent> by_depth;
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    const Plan& plan = plans[rank];
    for (size_t id = 0; id < plan.ops.size(); ++id) {
      const Op& op = plan.ops[id];
      if (op.kind != OpKind::kSend) continue;
      Sent& sent = by_depth[depths.of(rank, id)];
      const uint32_t weight = plan.part_weights.empty() ? 1 : plan.part_weights[op.length_of.index];
      ++sent.edges[{plan.rank, op.peer, weight}];
      sent.stages.insert({plan.rank, op.stage});
      sent.senders.insert(plan.rank);
      sent.folds += folded.count({op.peer, plan.rank, op.message});
      ++sent.messages;
    }
  }
  const std::vector<uint32_t>& weights = plans.front().part_weights;
  const double total = weights.empty() ? 1 : std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<Round> rounds;
  for (const auto& [depth, sent] : by_depth) {
    Round round{.folds = 2 * sent.folds > sent.messages,
                .same_data = sent.stages.size() == sent.senders.size()};
    for (const auto& [edge, messages] : sent.edges) {
      const auto& [from, to, weight] = edge;
      round.edges.push_back({from, to, messages, weight / total});
    }
    rounds.push_back(std::move(round));
  }
  return rounds;
}

}  // namespace q7x2
