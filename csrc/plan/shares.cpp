// Shares: as SRA, but the part of each owner is as long as its host's link allows.
//
//   link     1      1      1     1/5
//   rank     0      1      2      3
//            |--0--|--1--|--2--|          all send part p to rank p, which folds it in rank order,
//                                         and sends the sum to all; rank 3 owns nothing
//
//   collective   steps   bytes through the NIC of a host with r of n ranks, whose share is w
//   all_reduce   2       (r + (n-2r) w) B each way                        (B: the whole buffer)
//
// Every rank must send its contribution once and receive the result once: r B for its host. What a
// host owns comes on top. So the time T is the least one for which the shares that fit into it,
//
//   w = max(0, (T rate - r B) / ((n-2r) B)),
//
// add up to 1. If the slowest host alone needs longer than T for its r B, nothing is faster than
// what its link allows: it owns nothing. In SRA it would send and receive 2 r B (n-1)/n.
// It is for networks whose hosts have links of different rates, or where a link has become slower
// (docs/planner.md). Each contribution is rounded once, as in SRA.
// The idea that a slow member does less is that of OptCC, where rings are cut unequally.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <vector>

#include "fabric/fabric.h"
#include "plan/generators.h"
#include "plan/network.h"

namespace q7x2 {

namespace {

using OpId = PlanBuilder::OpId;

/// Hosts are alike if the fastest link is less than that much faster than the slowest one.
constexpr double kAlike = 1.15;
/// The mean part has so many units. More of them would make the shortest slices longer.
constexpr double kUnits = 4;

/// What a host has of the work, and could do.
struct Member {
  double rate = 0;  ///< of its link, of the fastest one's
  double ranks = 0;
  double share = 0;
};

/// The hosts' links; empty where nothing is to be gained.
std::vector<Member> members_of(const ScheduleRequest& request) {
  if (request.fabric == nullptr) return {};
  const Fabric& fabric = *request.fabric;
  std::vector<Member> members(fabric.hosts.size());
  double slowest = HUGE_VAL;
  double fastest = 0;
  for (size_t host = 0; host < members.size(); ++host) {
    members[host].rate = rate_of_host(fabric, static_cast<int>(host));
    slowest = std::min(slowest, members[host].rate);
    fastest = std::max(fastest, members[host].rate);
  }
  for (const int host : fabric.host_of) members[static_cast<size_t>(host)].ranks += 1;
  if (!std::isfinite(fastest) || fastest < kAlike * slowest) return {};
  for (Member& member : members) {
    member.rate /= fastest;
    if (2 * member.ranks >= request.world_size) return {};
  }
  return members;
}

/// Sets the shares. Hosts enter in the order in which they could do anything beside their own.
void divide(std::vector<Member>& members, int n) {
  std::vector<Member*> order;
  for (Member& member : members) order.push_back(&member);
  std::ranges::stable_sort(order, {}, [](const Member* each) { return each->ranks / each->rate; });
  double owed = 1;
  double speed = 0;
  double time = HUGE_VAL;
  for (const Member* member : order) {
    if (member->ranks / member->rate >= time) break;
    owed += member->ranks / (n - 2 * member->ranks);
    speed += member->rate / (n - 2 * member->ranks);
    time = owed / speed;
  }
  for (Member& member : members) {
    member.share = std::max(0.0, (time * member.rate - member.ranks) / (n - 2 * member.ranks));
  }
}

/// Who owns which part.
struct Owners {
  std::vector<int> ranks;  ///< by part
  std::vector<uint32_t> weights;
  std::vector<int> part_of;  ///< by rank; -1: it owns nothing
};

Owners owners_of(const ScheduleRequest& request) {
  const int n = request.world_size;
  std::vector<Member> members = members_of(request);
  divide(members, n);
  Owners owners;
  owners.part_of.assign(static_cast<size_t>(n), -1);
  uint32_t divisor = 0;
  for (int rank = 0; rank < n; ++rank) {
    const auto host = static_cast<size_t>(request.fabric->host_of[static_cast<size_t>(rank)]);
    const double share = members[host].share / members[host].ranks;
    const auto weight = static_cast<uint32_t>(std::lround(share * kUnits * n));
    if (weight == 0) continue;
    owners.part_of[static_cast<size_t>(rank)] = static_cast<int>(owners.ranks.size());
    owners.ranks.push_back(rank);
    owners.weights.push_back(weight);
    divisor = std::gcd(divisor, weight);
  }
  for (uint32_t& weight : owners.weights) weight /= divisor;
  return owners;
}

// The pairwise order of SRA. In place: a part of the result may arrive only when the same part of
// the input has left.
void all_reduce(PlanBuilder& b, const Owners& owners, int n, int rank) {
  const auto part_of = [&](int of) { return owners.part_of[static_cast<size_t>(of)]; };
  const int own = part_of(rank);
  std::vector<OpId> sent(static_cast<size_t>(n));  // by receiver
  std::vector<OpId> received;
  for (int k = 1; k < n; ++k) {
    const int right = (rank + k) % n;
    const int left = (rank + n - k) % n;
    if (part_of(right) >= 0) {
      sent[static_cast<size_t>(right)] = b.send(right, Block::input(part_of(right)));
    }
    if (own >= 0) received.push_back(b.recv(left, Block::scratch(k - 1), {}, Block::input(own)));
  }
  OpId sum = 0;
  if (own >= 0) {
    std::vector<Block> operands;
    for (int source = 0; source < n; ++source) {
      const int distance = (rank - source + n) % n;
      operands.push_back(distance == 0 ? Block::input(own) : Block::scratch(distance - 1));
    }
    sum = b.reduce(operands, Block::output(own), true, received);
  }
  for (int k = 1; k < n; ++k) {
    const int left = (rank + n - k) % n;
    if (own >= 0) b.send((rank + k) % n, Block::output(own), {{sum}});
    if (part_of(left) >= 0) {
      b.recv(left, Block::output(part_of(left)), {{sent[static_cast<size_t>(left)]}});
    }
  }
}

Schedule generate(const ScheduleRequest& request) {
  const int n = request.world_size;
  const auto owners = std::make_shared<const Owners>(owners_of(request));
  Schedule schedule(request, "shares", owners->weights);
  schedule.set_rounds_once();
  const double total = std::accumulate(owners->weights.begin(), owners->weights.end(), 0.0);
  std::map<uint32_t, std::vector<int>> of_weight;
  for (size_t part = 0; part < owners->ranks.size(); ++part) {
    of_weight[owners->weights[part]].push_back(owners->ranks[part]);
  }
  Round scatter{.folds = true};
  const Team all = team_of(schedule.contract().contributors);
  for (auto& [weight, ranks] : of_weight) {
    scatter.crosses.push_back({all, team_of(std::move(ranks)), 1, weight / total});
  }
  schedule.add_round(scatter);
  schedule.add_round(backwards({scatter}, n)[0]);
  schedule.set_program([owners, n](PlanBuilder& b, int rank) { all_reduce(b, *owners, n, rank); });
  return schedule;
}

/// No parameter.
std::vector<int> parameters(const ScheduleRequest& request) {
  return members_of(request).empty() ? std::vector<int>{} : std::vector<int>{0};
}

}  // namespace

std::vector<Generator> shares_generators() {
  return {{.name = "shares",
           .collective = Collective::kAllReduce,
           .generate = generate,
           .rounds_once = true,
           .parameters = parameters}};
}

}  // namespace q7x2
