// Shares: like SRA, but the part of each owner is as long as its host's link and processor allow.
//
//   link     1      1      1     1/5
//   rank     0      1      2      3
//            |--0--|--1--|--2--|          all ranks send part p to rank p, which folds it in rank
//                                         order, and sends the sum to all; rank 3 owns nothing
//
//   collective   steps   bytes through the NIC of a host with r of n ranks, whose share is w
//   all_reduce   2       (r + (n-2r) w) B each way                        (B: the whole buffer)
//
// Each rank must send its contribution once and receive the result once: r B for its host. The
// parts that a host owns come on top, and must be added up. So the time T is the smallest for which
// the shares that fit into it,
//
//   w = max(0, min((T rate - r B) / ((n-2r) B), T r speed / B)),
//
// add up to 1. `speed` is the rate at which a rank computes bytes of the result. If the slowest
// host needs longer than T for its r B alone, its link determines the time, and it owns nothing. In
// SRA it would send and receive 2 r B (n-1)/n.
//
// It is for networks whose hosts have links or processors of different rates, or one of which has
// become slower (docs/planner.md). Processors count only on fast links, because a core that is not
// slow adds up what about 300 Gbit/s deliver. Each contribution is rounded once, as in SRA.
//
// The idea that a slow member does less comes from OptCC, which cuts rings unequally.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <vector>

#include "fabric/fabric.h"
#include "plan/algorithms/generators.h"
#include "plan/cost/model.h"
#include "plan/cost/network.h"

namespace q7x2 {

namespace {

using OpId = PlanBuilder::OpId;

/// Hosts count as alike if the fastest one is faster than the slowest one by less than this factor.
constexpr double kAlike = 1.15;
/// Number of units in the mean part. More units would make the shortest slices longer.
constexpr double kUnits = 4;
/// Steps of a bisection; each halves the error.
constexpr int kSteps = 60;

/// The work that a host has, and its capacity.
struct Member {
  double rate = 0;  ///< bytes per second of its link
  /// bytes of the result per second that each of its ranks computes; may be infinite
  double speed = 0;
  double ranks = 0;
  double share = 0;
  bool is_slow = false;  ///< its processor limits its share, not its link
};

/// The share that the link of a host allows it to own if everything takes this many seconds per
/// byte.
double share_of_link(const Member& member, double seconds, int n) {
  return std::max(0.0, (seconds * member.rate - member.ranks) / (n - 2 * member.ranks));
}

/// The same for its processor.
double share_of_processor(const Member& member, double seconds) {
  return seconds * member.speed * member.ranks;
}

bool is_alike(const std::vector<Member>& members, double Member::*what) {
  const auto [slowest, fastest] = std::ranges::minmax(members, {}, what);
  return fastest.*what < kAlike * (slowest.*what) || fastest.*what == slowest.*what;
}

double speed_of_rank(const Fabric& fabric, int host, double ranks) {
  const double cores = std::min<double>(ranks, fabric.hosts[static_cast<size_t>(host)].cores);
  // All contributions are read once, and the sum is written.
  const double passes = (fabric.world_size() + 1) / model::kPasses;
  return rate_or_unlimited(fabric.host_reduce_rate(host)) * cores / ranks / passes;
}

/// The hosts; empty if nothing can be gained.
std::vector<Member> members_of(const ScheduleRequest& request) {
  if (request.fabric == nullptr) return {};
  const Fabric& fabric = *request.fabric;
  std::vector<Member> members(fabric.hosts.size());
  for (const int host : fabric.host_of) members[static_cast<size_t>(host)].ranks += 1;
  for (size_t host = 0; host < members.size(); ++host) {
    Member& member = members[host];
    member.rate = rate_of_host(fabric, static_cast<int>(host));
    member.speed = speed_of_rank(fabric, static_cast<int>(host), member.ranks);
    if (!std::isfinite(member.rate) || 2 * member.ranks >= request.world_size) return {};
  }
  if (is_alike(members, &Member::rate) && is_alike(members, &Member::speed)) return {};
  return members;
}

/// Computes the shares.
void divide(std::vector<Member>& members, int n) {
  const auto share_within = [n](const Member& member, double seconds) {
    return std::min(share_of_link(member, seconds, n), share_of_processor(member, seconds));
  };
  const auto sum_within = [&](double seconds) {
    double sum = 0;
    for (const Member& member : members) sum += share_within(member, seconds);
    return sum;
  };
  double least = 0;
  double most = 1 / members[0].rate;
  while (sum_within(most) < 1) most *= 2;
  for (int step = 0; step < kSteps; ++step) {
    const double middle = (least + most) / 2;
    (sum_within(middle) < 1 ? least : most) = middle;
  }
  for (Member& member : members) {
    member.share = share_within(member, most);
    member.is_slow = member.share < share_of_link(member, most, n);
  }
}

/// The units of each rank of a host. Those of a slow processor are rounded down, because one more
/// unit costs it more time than the others.
uint32_t units_of(const Member& member, int n) {
  const double units = member.share / member.ranks * kUnits * n;
  return static_cast<uint32_t>(member.is_slow && units > 1 ? std::floor(units) : std::round(units));
}

/// Which rank owns which part.
struct Owners {
  std::vector<int> ranks;  ///< by part
  std::vector<uint32_t> weights;
  std::vector<int> part_of;  ///< by rank; -1: owns nothing
};

Owners owners_of(const ScheduleRequest& request) {
  const int n = request.world_size;
  std::vector<Member> members = members_of(request);
  divide(members, n);
  Owners owners;
  owners.part_of.assign(static_cast<size_t>(n), -1);
  uint32_t divisor = 0;
  for (int rank = 0; rank < n; ++rank) {
    const int host = request.fabric->host_of[static_cast<size_t>(rank)];
    const uint32_t weight = units_of(members[static_cast<size_t>(host)], n);
    if (weight == 0) continue;
    owners.part_of[static_cast<size_t>(rank)] = static_cast<int>(owners.ranks.size());
    owners.ranks.push_back(rank);
    owners.weights.push_back(weight);
    divisor = std::gcd(divisor, weight);
  }
  for (uint32_t& weight : owners.weights) weight /= divisor;
  return owners;
}

// The pairwise order of SRA. In place: a part of the result may arrive only after the same part of
// the input was sent.
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

/// Has no parameter. Offers nothing if the shares would be those of SRA.
std::vector<int> parameters(const ScheduleRequest& request) {
  if (members_of(request).empty()) return {};
  const std::vector<uint32_t> weights = owners_of(request).weights;
  const bool is_equal = weights.size() == static_cast<size_t>(request.world_size) &&
                        std::ranges::all_of(weights, [](uint32_t each) { return each == 1; });
  return is_equal ? std::vector<int>{} : std::vector<int>{0};
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
