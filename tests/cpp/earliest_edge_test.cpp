// Trees by the message that arrives first: what they look like, and that no other algorithm is much
// faster for small data that goes one way.
#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "level.h"
#include "plan/algorithms/generators.h"
#include "plan/choose/planner.h"
#include "planning.h"

namespace q7x2 {
namespace {

using test::add_slow;
using test::in_racks;
using test::kGigabit;
using test::kKiB;
using test::kMegabit;
using test::switched;

/// The trees for messages of 1 KiB.
Schedule schedule_of(const Fabric& fabric, Collective collective, int root) {
  for (const Generator& generator : generators()) {
    if (generator.name != "earliest_edge" || generator.collective != collective) continue;
    ScheduleRequest request{collective, fabric.world_size(), root, &fabric};
    EXPECT_FALSE(generator.parameters(request).empty());
    request.parameter = 1;
    return generator.generate(request);
  }
  throw Error(ErrorCode::kInvalidArgument, "no such generator");
}

std::vector<int> receivers(const Plan& plan) {
  std::vector<int> peers;
  for (const Op& op : plan.ops) {
    if (op.kind == OpKind::kSend) peers.push_back(op.peer);
  }
  return peers;
}

TEST(EarliestEdge, ASlowNicIsALeafAndIsServedFirst) {
  for (const int slow : {1, 3, 5}) {
    Fabric fabric = switched(6, kGigabit);
    Fabric::Host& host = fabric.hosts[static_cast<size_t>(slow)];
    host.egress = host.ingress = 50 * kMegabit;
    const Schedule schedule = schedule_of(fabric, Collective::kBroadcast, 0);
    EXPECT_TRUE(receivers(schedule.project(slow)).empty());
    EXPECT_EQ(receivers(schedule.project(0)).front(), slow);
  }
}

TEST(EarliestEdge, AFarRackIsReachedOverThePrivateLink) {
  Fabric fabric = in_racks({0, 0, 0, 1, 1, 1}, kGigabit, kGigabit, 20e-3);
  fabric.links.push_back({1, 4, kGigabit, 50e-6});
  const Schedule schedule = schedule_of(fabric, Collective::kAllGather, -1);
  for (int rank = 0; rank < fabric.world_size(); ++rank) {
    for (const int peer : receivers(schedule.project(rank))) {
      if (fabric.rack_of(rank) == fabric.rack_of(peer)) continue;
      EXPECT_EQ(std::minmax(rank, peer), std::minmax(1, 4));
    }
  }
}

TEST(EarliestEdge, IsNotOfferedWhereAllAreEquallyNear) {
  const Fabric fabric = switched(6, kGigabit);
  for (const Generator& generator : generators()) {
    if (generator.name != "earliest_edge") continue;
    const int root = is_rooted(generator.collective) ? 0 : -1;
    EXPECT_FALSE(generator.applies({generator.collective, 6, root, &fabric}));
  }
}

/// Up to three racks with random rates and latencies, and a private link, a slow pair, or a slow
/// NIC.
Fabric random_network(std::mt19937& random) {
  const auto below = [&](int limit) {
    return static_cast<int>(random() % static_cast<unsigned>(limit));
  };
  const int hosts = 3 + below(6);
  std::vector<int> rack_of;
  for (int host = 0; host < hosts; ++host) rack_of.push_back(host < 2 ? host : below(3));
  Fabric fabric = in_racks(rack_of, kGigabit, kGigabit);
  for (Fabric::Rack& rack : fabric.racks) {
    rack = {"", (20 + below(400)) * kMegabit, (20 + below(400)) * kMegabit, below(20) * 1e-3};
  }
  const int a = below(hosts);
  const int b = (a + 1 + below(hosts - 1)) % hosts;
  if (below(2) == 0) fabric.links.push_back({a, b, kGigabit, 50e-6});
  if (below(2) == 0) add_slow(fabric, b, a, kGigabit / 10);
  Fabric::Host& host = fabric.hosts[static_cast<size_t>(below(hosts))];
  if (below(2) == 0) host.egress = host.ingress = kGigabit / 10;
  return fabric;
}

TEST(EarliestEdge, TakesAboutAsLongAsTheBest) {
  constexpr double kAbout = 1.1;
  const unsigned seed = std::random_device()();
  std::mt19937 random(seed);
  int compared = 0;
  for (int i = 0; i < test::at_level(40, 1000); ++i) {
    const auto fabric = std::make_shared<const Fabric>(random_network(random));
    for (const Collective collective : {Collective::kBroadcast, Collective::kReduce}) {
      const CallShape shape{collective, kKiB, 0};
      if (Planner(0, fabric, "").schedule(shape, "earliest_edge:1") == nullptr) continue;
      const double best = Planner(0, fabric, "").choose(shape).seconds;
      const double seconds = Planner(0, fabric, "earliest_edge:1").choose(shape).seconds;
      EXPECT_LE(seconds, kAbout * best)
          << to_string(collective) << ", network " << i << ", seed " << seed;
      ++compared;
    }
  }
  EXPECT_GT(compared, 40);
}

}  // namespace
}  // namespace q7x2
