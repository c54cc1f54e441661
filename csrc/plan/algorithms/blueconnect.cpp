// clang-format off
// BlueConnect: the ranks of a host share its NIC, each with its own ring over all hosts.
//
//   host 0    0 <-> 1      fold within     Part of (host h, rank l): on each host, rank l folds it.
//             |     |                      The sum travels round the ring of these ranks, from host
//   host 1    2 <-> 3      rings across    h + 1, and ends at host h, which owns it. The result
//             |     |                      travels round the same ring, and each of these ranks
//   host 2    4 <-> 5      pass on         passes it on within its host.
//             |     |
//             (back to host 0)
// clang-format on
//
//   all_reduce by g hosts of m ranks: g m parts, 2 (g-1) + 2 steps. A NIC carries 2 B (g-1)/g each
//   way (B: the whole buffer), a rank sends 2 B (m-1)/m within its host.
//
// The NICs carry the least possible number of bytes for any number of ranks, and only one host
// sends to each NIC. A ring over all ranks moves 2 B (n-1)/n through a NIC, up to 4/3 as much.
// Hierarchical moves as few bytes, but g-1 hosts send to one at the same time. So this wins for
// large data on networks of three or more hosts with several ranks each.
// Cho et al., "BlueConnect: decomposing all-reduce for deep learning on heterogeneous network
// hierarchy", MLSys 2019.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "fabric/fabric.h"
#include "plan/algorithms/generators.h"
#include "plan/algorithms/order.h"
#include "plan/ir/tree.h"

namespace q7x2 {

namespace {

/// Hosts in near order, each with its ranks. Rank l of a host owns part `host * width + l`.
class Rings {
 public:
  explicit Rings(const ScheduleRequest& request)
      : positions_(static_cast<size_t>(request.world_size)) {
    const Fabric& fabric = *request.fabric;
    std::vector<int> row_of_host(fabric.hosts.size(), -1);
    const Order order = near_order(request);
    for (const int rank : order.ranks()) {
      int& row = row_of_host[static_cast<size_t>(fabric.host_of[static_cast<size_t>(rank)])];
      if (row < 0) {
        row = num_hosts();
        rows_.emplace_back();
      }
      std::vector<int>& ranks = rows_[static_cast<size_t>(row)];
      positions_[static_cast<size_t>(rank)] = {row, static_cast<int>(ranks.size())};
      ranks.push_back(rank);
    }
  }

  int num_hosts() const { return static_cast<int>(rows_.size()); }
  int width() const { return static_cast<int>(rows_.front().size()); }
  int parts() const { return num_hosts() * width(); }
  const std::vector<int>& row(int host) const { return rows_[static_cast<size_t>(host)]; }
  bool is_uniform() const {
    return std::ranges::all_of(
        rows_, [&](const std::vector<int>& row) { return row.size() == rows_.front().size(); });
  }

  /// The tree that folds a part upwards or copies its sum downwards. Both follow the ring of the
  /// part's owner in the same direction.
  Branch branch(int part, int rank, bool is_up) const {
    const auto& [host, position] = positions_[static_cast<size_t>(rank)];
    const int leader = part % width();
    if (position != leader) return {row(host)[static_cast<size_t>(leader)], {}};
    Branch branch;
    const int owner = part / width();
    const int before = at(host - 1, leader);
    const int after = at(host + 1, leader);
    if (is_up) {
      if (host != owner) branch.parent = after;
      if (before != at(owner, leader)) branch.children.push_back(before);
    } else {
      if (host != owner) branch.parent = before;
      if (after != at(owner, leader)) branch.children.push_back(after);
    }
    for (const int other : row(host)) {
      if (other != rank) branch.children.push_back(other);
    }
    return branch;
  }

  /// All ranks of each host to all other ranks of it: one message per host's part.
  Round within() const {
    Round round;
    for (const std::vector<int>& ranks : rows_) {
      const Team team = team_of(ranks);
      round.crosses.push_back({team, team, static_cast<uint32_t>(num_hosts()), 1.0 / parts()});
    }
    return round;
  }

  /// One circulation of all rings at the same time.
  Round across() const {
    Round round{.repeats = num_hosts() - 1};
    for (int host = 0; host < num_hosts(); ++host) {
      for (int l = 0; l < width(); ++l) {
        round.edges.push_back({at(host, l), at(host + 1, l), 1, 1.0 / parts()});
      }
    }
    return round;
  }

 private:
  int at(int host, int position) const {
    return row((host + num_hosts()) % num_hosts())[static_cast<size_t>(position)];
  }

  std::vector<std::vector<int>> rows_;
  std::vector<std::pair<int, int>> positions_;  // by rank: its host, and its index on this host
};

Schedule generate(const ScheduleRequest& request) {
  const auto rings = std::make_shared<const Rings>(request);
  const int n = request.world_size;
  Schedule schedule(request, "blueconnect", equal_parts(rings->parts()));
  Round within = rings->within();
  within.folds = true;
  schedule.add_round(within);
  Round across = rings->across();
  across.folds = true;
  across.contributions = n / 2.0;
  schedule.add_round(across);
  across.folds = within.folds = false;
  across.contributions = within.contributions = n;
  within.same_data = true;
  schedule.add_round(std::move(across));
  schedule.add_round(std::move(within));
  schedule.set_program([rings](PlanBuilder& b, int rank) {
    Forest forest(b);
    const auto trees = [&](bool is_up) {
      std::vector<Branch> all;
      for (int part = 0; part < rings->parts(); ++part) {
        all.push_back(rings->branch(part, rank, is_up));
      }
      return all;
    };
    forest.reduce_up(trees(true));
    forest.broadcast_down(trees(false));
  });
  return schedule;
}

/// Has no parameter. Offers nothing for two hosts, because an exchange moves as few bytes in fewer
/// steps, nor for one rank per host, because that is the ring.
std::vector<int> parameters(const ScheduleRequest& request) {
  if (request.fabric == nullptr) return {};
  const Rings rings(request);
  const bool applies = rings.num_hosts() > 2 && rings.width() > 1 && rings.is_uniform();
  return applies ? std::vector<int>{0} : std::vector<int>{};
}

}  // namespace

// The sum and the result of each part have separate message ids.
std::vector<Generator> blueconnect_generators() {
  return {{.name = "blueconnect",
           .collective = Collective::kAllReduce,
           .generate = generate,
           .max_world_size = Plan::kMaxMessages / 2,
           .parameters = parameters}};
}

}  // namespace q7x2
