// Servers-k: k processes without a rank add up the contributions of all ranks, each for a share of
// the data.
//
//   k = 2, 3 ranks:   part 0: 0, 1, 2 -> server 0, which folds      then server 0 -> 0, 1, 2
//                     part 1: 0, 1, 2 -> server 1, which folds      then server 1 -> 0, 1, 2
//
//   collective    steps   bytes sent by a rank    received by a rank      by a server, each way
//   all_reduce    2       B                       B                       n B/k
//   reduce        2       B                       B, the root alone       n B/k in, B/k out
//
// A rank sends the buffer once and receives it once, both at the same time because slices follow
// each other. Algorithms among ranks alone need at least 2 B (n-1)/n each way. So it wins for long
// data if the ranks' links are slow and the servers' are n/k times as fast. Each server's share of
// the data is proportional to its rate; servers:k takes the k fastest.
//
// The window of slices corresponds to the pool of slots of an aggregating switch: a rank sends the
// next slice when a slot's result has come back, so no server holds more than one window of slices.
// Contributions are added in rank order, in whatever order they arrive, and rounded once.
// Sapio et al., "Scaling distributed machine learning with in-network aggregation" (SwitchML),
// 2021; Lao et al., "ATP: in-network aggregation for multi-tenant learning", 2021.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "fabric/fabric.h"
#include "plan/algorithms/generators.h"
#include "plan/cost/server_rates.h"

namespace q7x2 {

namespace {

using OpId = PlanBuilder::OpId;

/// The `count` fastest servers, ordered by number.
std::vector<RatedServer> fastest(const ScheduleRequest& request, int count) {
  std::vector<RatedServer> servers = servers_by_rate(*request.fabric);
  servers.resize(static_cast<size_t>(count));
  std::ranges::sort(servers, {}, &RatedServer::member);
  return servers;
}

/// The share of each server. Unknown rates count as equal.
std::vector<uint32_t> shares(const std::vector<RatedServer>& servers) {
  constexpr double kFinest = 16;
  const double most = std::ranges::max_element(servers, {}, &RatedServer::rate)->rate;
  std::vector<uint32_t> weights;
  for (const RatedServer& server : servers) {
    const double share = std::isfinite(most) ? server.rate / most : std::isinf(server.rate);
    weights.push_back(std::max(1U, static_cast<uint32_t>(std::lround(share * kFinest))));
  }
  if (std::ranges::adjacent_find(weights, std::ranges::not_equal_to{}) == weights.end()) {
    weights.assign(weights.size(), 1);
  }
  return weights;
}

// In place: a part of the result may arrive only after the same part of the input was sent. Each
// rank begins with another server.
void add_rank(PlanBuilder& b, const std::vector<RatedServer>& servers, bool receives) {
  const auto parts = static_cast<int>(servers.size());
  for (int i = 0; i < parts; ++i) {
    const int part = (b.header().rank + i) % parts;
    const int server = servers[static_cast<size_t>(part)].member;
    const OpId sent = b.send(server, Block::input(part));
    if (receives) b.recv(server, Block::output(part), {{sent}});
  }
}

void add_server(PlanBuilder& b, int part, const std::vector<int>& receivers) {
  const Block length = Block::input(part);
  std::vector<Block> operands;
  std::vector<OpId> received;
  for (int rank = 0; rank < b.header().world_size; ++rank) {
    operands.push_back(Block::scratch(rank));
    received.push_back(b.recv(rank, operands.back(), {}, length));
  }
  const OpId sum = b.reduce(operands, operands.front(), true, received, length);
  for (const int rank : receivers) b.send(rank, operands.front(), {{sum}}, length);
}

void add_rounds(Schedule& schedule, const std::vector<RatedServer>& servers) {
  const std::vector<uint32_t>& weights = schedule.part_weights();
  double total = 0;
  for (const uint32_t weight : weights) total += weight;
  const Team ranks = team_of(schedule.contract().contributors);
  const Team receivers = team_of(schedule.contract().receivers);
  Round up{.folds = true};
  Round down{.same_data = true, .contributions = static_cast<double>(schedule.world_size())};
  for (size_t i = 0; i < servers.size(); ++i) {
    const Team server = team_of({servers[i].member});
    up.crosses.push_back({ranks, server, 1, weights[i] / total});
    down.crosses.push_back({server, receivers, 1, weights[i] / total});
  }
  schedule.add_round(std::move(up));
  schedule.add_round(std::move(down));
}

Schedule generate(const ScheduleRequest& request) {
  const std::vector<RatedServer> servers = fastest(request, request.parameter);
  Schedule schedule(request, "servers", shares(servers));
  schedule.set_helpers(static_cast<int>(request.fabric->servers.size()));
  schedule.set_rounds_once();
  add_rounds(schedule, servers);
  schedule.set_program(
      [servers, receivers = schedule.contract().receivers](PlanBuilder& b, int member) {
        if (member < b.header().world_size) {
          add_rank(b, servers, std::ranges::binary_search(receivers, member));
          return;
        }
        const auto it = std::ranges::find(servers, member, &RatedServer::member);
        if (it != servers.end()) add_server(b, static_cast<int>(it - servers.begin()), receivers);
      });
  return schedule;
}

/// The powers of two, and the number of servers.
std::vector<int> parameters(const ScheduleRequest& request) {
  if (request.fabric == nullptr || request.fabric->servers.empty() || request.world_size < 2) {
    return {};
  }
  const auto servers = static_cast<int>(request.fabric->servers.size());
  std::vector<int> counts;
  for (int k = 1; k < servers; k *= 2) counts.push_back(k);
  counts.push_back(servers);
  return counts;
}

// A server holds a contribution of each rank, for each slice of its window.
constexpr int kMaxRanks = 1024;

}  // namespace

std::vector<Generator> servers_generators() {
  return {
      {.name = "servers",
       .collective = Collective::kAllReduce,
       .generate = generate,
       .rounds_once = true,
       .max_world_size = kMaxRanks,
       .parameters = parameters},
      {.name = "servers",
       .collective = Collective::kReduce,
       .generate = generate,
       .rounds_once = true,
       .max_world_size = kMaxRanks,
       .parameters = parameters},
  };
}

}  // namespace q7x2
