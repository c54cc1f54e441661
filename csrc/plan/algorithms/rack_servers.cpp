// Rack-servers-k: servers add up in two levels, like switches of racks and a switch above them.
//
//   2 racks of 2 ranks, one server per rack, k = 1:
//
//   part 0: 0, 1 -> s0 -----------------> s0, which folds   then s0 -> 0, 1
//           2, 3 -> s1, which folds ----> s0                     s0 -> s1 -> 2, 3
//   part 1: the same, but s1 computes the total
//
//   collective    steps   bytes sent by a rank   by a server            out of a rack with a server
//   all_reduce    4       B                      (m + 2 (R-1)/R) B/k    2 B (R-1)/R
//   reduce        4       B                      less                   at most B
//
// R racks have k servers and m ranks each. In servers:k each rank sends to all servers, so m B
// (R-1)/R leave a rack if servers are spread over the racks. Here only the sum of a rack leaves it,
// for any m. So it wins if the cables of racks are slow. In a rack with fewer than k servers, the
// ranks send to the servers that compute totals.
//
// The data is divided into k R parts. The j-th server of rack r computes the total of part (j, r),
// so all servers compute equally many totals. A server adds contributions in the order of their
// first ranks, in whatever order they arrive; a float of 16 bits is rounded twice.
// Sapio et al., "Scaling distributed machine learning with in-network aggregation" (SwitchML),
// 2021, section 6: racks and a root; Lao et al., "ATP", 2021.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "fabric/fabric.h"
#include "plan/algorithms/generators.h"
#include "plan/cost/server_rates.h"

namespace q7x2 {

namespace {

using OpId = PlanBuilder::OpId;

struct Rack {
  std::vector<int> ranks;
  std::vector<int> servers;  ///< the k fastest; empty: there are fewer
  std::vector<int> receivers;
};

/// The racks, their servers, and the rack of each member.
struct Levels {
  int k = 0;
  std::vector<Rack> racks;   ///< the R racks that have servers
  Rack rest;                 ///< the ranks of all other racks
  std::vector<int> rack_of;  ///< by member; -1: one of the rest, or not needed

  int num_racks() const { return static_cast<int>(racks.size()); }
  int num_parts() const { return k * num_racks(); }
  int part(int j, int rack) const { return j * num_racks() + rack; }
  int server(int rack, int j) const {
    return racks[static_cast<size_t>(rack)].servers[static_cast<size_t>(j)];
  }
};

/// The servers of each rack that has ranks, the fastest first.
std::vector<std::vector<int>> servers_by_rack(const Fabric& fabric) {
  std::vector<bool> has_ranks(fabric.racks.size());
  for (int rank = 0; rank < fabric.world_size(); ++rank) {
    has_ranks[static_cast<size_t>(fabric.rack_of(rank))] = true;
  }
  const Fabric all = fabric.with_servers();
  std::vector<std::vector<int>> servers(fabric.racks.size());
  for (const RatedServer& server : servers_by_rate(fabric)) {
    const auto rack = static_cast<size_t>(all.rack_of(server.member));
    if (has_ranks[rack]) servers[rack].push_back(server.member);
  }
  return servers;
}

Levels levels_of(const ScheduleRequest& request, const Contract& contract) {
  const Fabric& fabric = *request.fabric;
  Levels levels;
  levels.k = request.parameter;
  levels.rack_of.assign(fabric.servers.size() + static_cast<size_t>(fabric.world_size()), -1);
  std::vector<int> number_of(fabric.racks.size(), -1);
  const std::vector<std::vector<int>> servers = servers_by_rack(fabric);
  for (size_t rack = 0; rack < servers.size(); ++rack) {
    if (static_cast<int>(servers[rack].size()) < levels.k) continue;
    number_of[rack] = levels.num_racks();
    const std::vector<int> fastest(servers[rack].begin(), servers[rack].begin() + levels.k);
    for (const int member : fastest) levels.rack_of[static_cast<size_t>(member)] = number_of[rack];
    levels.racks.push_back({.ranks = {}, .servers = fastest, .receivers = {}});
  }
  for (int rank = 0; rank < fabric.world_size(); ++rank) {
    const int number = number_of[static_cast<size_t>(fabric.rack_of(rank))];
    levels.rack_of[static_cast<size_t>(rank)] = number;
    Rack& rack = number < 0 ? levels.rest : levels.racks[static_cast<size_t>(number)];
    rack.ranks.push_back(rank);
    if (std::ranges::binary_search(contract.receivers, rank)) rack.receivers.push_back(rank);
  }
  return levels;
}

// In place: a part of the result may arrive only after the same part of the input was sent.
void add_rank(PlanBuilder& b, const Levels& levels) {
  const int rank = b.header().rank;
  const int own = levels.rack_of[static_cast<size_t>(rank)];
  const Rack& rack = own < 0 ? levels.rest : levels.racks[static_cast<size_t>(own)];
  const bool receives = std::ranges::binary_search(rack.receivers, rank);
  for (int i = 0; i < levels.k; ++i) {
    const int j = (rank + i) % levels.k;
    for (int total = 0; total < levels.num_racks(); ++total) {
      const int part = levels.part(j, total);
      const int server = levels.server(own < 0 ? total : own, j);
      const OpId sent = b.send(server, Block::input(part));
      if (receives) b.recv(server, Block::output(part), {{sent}});
    }
  }
}

/// The contributions to a part that a server folds, in this order.
std::vector<int> sources_of(const Levels& levels, int own, int j, bool has_total) {
  std::vector<std::pair<int, int>> sources;  // the first rank of a contribution, and its sender
  const auto add_ranks = [&](const Rack& rack) {
    for (const int rank : rack.ranks) sources.emplace_back(rank, rank);
  };
  add_ranks(levels.racks[static_cast<size_t>(own)]);
  if (has_total) {
    add_ranks(levels.rest);
    for (int rack = 0; rack < levels.num_racks(); ++rack) {
      if (rack == own) continue;
      const int first = levels.racks[static_cast<size_t>(rack)].ranks.front();
      sources.emplace_back(first, levels.server(rack, j));
    }
  }
  std::ranges::sort(sources);
  std::vector<int> members;
  for (const auto& [first, member] : sources) members.push_back(member);
  return members;
}

void add_server(PlanBuilder& b, const Levels& levels, int own, int j) {
  const Rack& rack = levels.racks[static_cast<size_t>(own)];
  int next_block = 0;
  for (int total = 0; total < levels.num_racks(); ++total) {
    const Block length = Block::input(levels.part(j, total));
    const bool has_total = total == own;
    std::vector<Block> operands;
    std::vector<OpId> received;
    for (const int member : sources_of(levels, own, j, has_total)) {
      operands.push_back(Block::scratch(next_block++));
      received.push_back(b.recv(member, operands.back(), {}, length));
    }
    const Block sum = operands.front();
    OpId ready = received.front();
    if (operands.size() > 1) ready = b.reduce(operands, sum, has_total, received, length);
    if (has_total) {
      for (int other = 0; other < levels.num_racks(); ++other) {
        const bool passes_on = !levels.racks[static_cast<size_t>(other)].receivers.empty();
        if (other != own && passes_on) b.send(levels.server(other, j), sum, {{ready}}, length);
      }
      for (const int rank : levels.rest.receivers) b.send(rank, sum, {{ready}}, length);
    } else {
      const OpId sent = b.send(levels.server(total, j), sum, {{ready}}, length);
      if (rack.receivers.empty()) continue;
      ready = b.recv(levels.server(total, j), sum, {{sent}}, length);
    }
    for (const int rank : rack.receivers) b.send(rank, sum, {{ready}}, length);
  }
}

void add_rounds(Schedule& schedule, const Levels& levels) {
  const double share = 1.0 / levels.num_parts();
  const auto parts_each = static_cast<uint32_t>(levels.num_racks());
  const auto n = static_cast<double>(schedule.world_size());
  std::vector<int> all_servers;
  Round up{.folds = true};
  Round out{.folds = true, .contributions = n / levels.num_racks()};
  Round back{.same_data = true, .contributions = n};
  Round down{.same_data = true, .contributions = n};
  for (const Rack& rack : levels.racks) {
    const Team servers = team_of(rack.servers);
    all_servers.insert(all_servers.end(), rack.servers.begin(), rack.servers.end());
    up.crosses.push_back({team_of(rack.ranks), servers, parts_each, share});
    if (rack.receivers.empty()) continue;
    down.crosses.push_back({servers, team_of(rack.receivers), parts_each, share});
  }
  const Team totals = team_of(std::move(all_servers));
  if (!levels.rest.ranks.empty()) {
    up.crosses.push_back({team_of(levels.rest.ranks), totals, 1, share});
  }
  if (!levels.rest.receivers.empty()) {
    down.crosses.push_back({totals, team_of(levels.rest.receivers), 1, share});
  }
  for (int j = 0; j < levels.k; ++j) {
    std::vector<int> all;
    std::vector<int> passing_on;
    for (const Rack& rack : levels.racks) {
      all.push_back(rack.servers[static_cast<size_t>(j)]);
      if (!rack.receivers.empty()) passing_on.push_back(all.back());
    }
    const Team makers = team_of(std::move(all));
    out.crosses.push_back({makers, makers, 1, share});
    if (!passing_on.empty()) back.crosses.push_back({makers, team_of(passing_on), 1, share});
  }
  schedule.add_round(std::move(up));
  schedule.add_round(std::move(out));
  if (!back.crosses.empty()) schedule.add_round(std::move(back));
  schedule.add_round(std::move(down));
}

Schedule generate(const ScheduleRequest& request) {
  const auto levels = std::make_shared<const Levels>(levels_of(request, Contract::of(request)));
  Schedule schedule(request, "rack_servers", equal_parts(levels->num_parts()));
  schedule.set_helpers(static_cast<int>(request.fabric->servers.size()));
  add_rounds(schedule, *levels);
  schedule.set_program([levels](PlanBuilder& b, int member) {
    if (member < b.header().world_size) {
      add_rank(b, *levels);
      return;
    }
    const int rack = levels->rack_of[static_cast<size_t>(member)];
    if (rack < 0) return;
    const std::vector<int>& servers = levels->racks[static_cast<size_t>(rack)].servers;
    add_server(b, *levels, rack,
               static_cast<int>(std::ranges::find(servers, member) - servers.begin()));
  });
  return schedule;
}

/// The powers of two, and the largest number that two racks have.
std::vector<int> parameters(const ScheduleRequest& request) {
  if (request.fabric == nullptr || request.fabric->servers.empty()) return {};
  std::vector<size_t> counts;
  for (const auto& servers : servers_by_rack(*request.fabric)) counts.push_back(servers.size());
  if (counts.size() < 2) return {};
  std::ranges::sort(counts, std::ranges::greater{});
  const auto most = static_cast<int>(counts[1]);
  std::vector<int> values;
  for (int k = 1; k < most; k *= 2) values.push_back(k);
  if (most > 0) values.push_back(most);
  return values;
}

// A server holds a contribution of each rank of its rack, for each slice of its window.
constexpr int kMaxRanks = 1024;

Generator entry(Collective collective) {
  return {.name = "rack_servers",
          .collective = collective,
          .generate = generate,
          .max_world_size = kMaxRanks,
          .parameters = parameters};
}

}  // namespace

std::vector<Generator> rack_servers_generators() {
  return {entry(Collective::kAllReduce), entry(Collective::kReduce)};
}

}  // namespace q7x2
