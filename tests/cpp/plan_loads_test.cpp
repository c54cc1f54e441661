// The bytes that algorithms promise to move: per rank, per cable, per private link.
#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "fabric/fabric.h"
#include "plan/algorithms/generators.h"
#include "plan/cost/loads.h"
#include "plan/cost/simulator.h"
#include "plan/ir/plan.h"

namespace q7x2 {
namespace {

constexpr double kMegabit = 1e6 / 8;

std::vector<Plan> plans_of(const std::string& name, const ScheduleRequest& request) {
  for (const Generator& generator : generators()) {
    if (generator.name != name || generator.collective != request.collective) continue;
    EXPECT_TRUE(generator.applies(request)) << name;
    return generator.generate(request).project_all();
  }
  ADD_FAILURE() << "no generator " << name;
  return {};
}

std::vector<Plan> plans_on(const Fabric& fabric, const std::string& name, Collective op,
                           int parameter = 0, int root = -1) {
  return plans_of(name, {op, fabric.world_size(), root, &fabric, parameter});
}

// The most that a resource of one kind carries.
double busiest(const Fabric& fabric, const std::vector<Plan>& plans, Routes::Kind kind) {
  const Routes routes(fabric);
  const Loads loads = measure_loads(plans, &routes);
  double most = 0;
  for (size_t i = 0; i < loads.resources.size(); ++i) {
    if (routes.resources()[i].kind == kind) most = std::max(most, loads.resources[i]);
  }
  return most;
}

// Seconds for each byte of the buffer, were all messages on their way at the same time.
double bound(const Fabric& fabric, const std::vector<Plan>& plans) {
  const Routes routes(fabric);
  const Loads loads = measure_loads(plans, &routes);
  double seconds = 0;
  for (size_t i = 0; i < loads.resources.size(); ++i) {
    seconds = std::max(seconds, loads.resources[i] / routes.resources()[i].rate);
  }
  return seconds;
}

// Racks of hosts with one rank each; the ranks in rack order or interleaved.
Fabric racks(int count, int hosts, double host_rate, double uplink, bool interleaved) {
  Fabric fabric = Fabric::uniform(count * hosts, 1, host_rate);
  fabric.racks.assign(static_cast<size_t>(count), {"", uplink, uplink});
  for (int host = 0; host < count * hosts; ++host) {
    fabric.hosts[static_cast<size_t>(host)].rack = interleaved ? host % count : host / hosts;
  }
  return fabric;
}

// Host 0 has a private link to each other host; all share a slow net besides.
Fabric star_of_links() {
  Fabric fabric = Fabric::uniform(4, 1, 20 * kMegabit);
  for (int host = 1; host < 4; ++host) fabric.links.push_back({0, host, 100 * kMegabit, 30e-6});
  return fabric;
}

TEST(Loads, RingAndSraMoveTheLeast) {
  for (const int n : {1, 2, 3, 8, 13}) {
    for (const std::string name : {"ring", "sra"}) {
      const Loads loads = measure_loads(plans_of(name, {Collective::kAllReduce, n}), nullptr);
      for (int rank = 0; rank < n; ++rank) {
        EXPECT_NEAR(loads.sent[static_cast<size_t>(rank)], 2.0 * (n - 1) / n, 1e-9) << name;
        EXPECT_NEAR(loads.received[static_cast<size_t>(rank)], 2.0 * (n - 1) / n, 1e-9) << name;
      }
    }
  }
}

TEST(Loads, HalvingDoubling) {
  for (const int n : {2, 4, 16}) {
    const Loads loads =
        measure_loads(plans_of("halving_doubling", {Collective::kAllReduce, n}), nullptr);
    for (const double sent : loads.sent) EXPECT_NEAR(sent, 2.0 * (n - 1) / n, 1e-9);
  }
  // Seven owners of a fourth or an eighth each, and surplus ranks that bring and fetch everything.
  const Loads loads =
      measure_loads(plans_of("halving_doubling", {Collective::kAllReduce, 11}), nullptr);
  for (size_t rank = 0; rank < 11; ++rank) {
    EXPECT_NEAR(loads.sent[rank], rank < 8 ? 2 * 7.0 / 8 + 3.0 / 8 : 1, 1e-9);
  }
}

TEST(Loads, DoubleBinaryTreeSpreadsTheWork) {
  for (const int n : {2, 3, 7, 8, 16, 17}) {
    const Loads loads =
        measure_loads(plans_of("double_binary_tree", {Collective::kAllReduce, n}), nullptr);
    for (size_t rank = 0; rank < loads.sent.size(); ++rank) {
      EXPECT_LE(loads.sent[rank], 2) << n;
      EXPECT_LE(loads.received[rank], 2) << n;
    }
    const Loads broadcast =
        measure_loads(plans_of("double_binary_tree", {Collective::kBroadcast, n, 1}), nullptr);
    for (const double sent : broadcast.sent) EXPECT_LE(sent, 1) << n;
  }
}

TEST(Loads, ChainSendsEverythingOnce) {
  const Loads loads = measure_loads(plans_of("chain", {Collective::kBroadcast, 9, 4}), nullptr);
  for (const double sent : loads.sent) EXPECT_LE(sent, 1);
  EXPECT_EQ(*std::ranges::max_element(loads.received), 1);
}

TEST(Loads, AggregatorsCarryWhatTheySpareTheOthers) {
  const Loads loads =
      measure_loads(plans_of("aggregator", {Collective::kAllReduce, 8, -1, nullptr, 2}), nullptr);
  EXPECT_EQ(std::ranges::count(loads.sent, 1.0), 6);
  EXPECT_EQ(*std::ranges::max_element(loads.sent), 0.5 + 7 * 0.5);
}

// The uplinks carry each byte once in each direction, hosts no more than in a flat algorithm.
TEST(Loads, HierarchicalOverTwoRacks) {
  for (const bool interleaved : {false, true}) {
    const Fabric fabric = racks(2, 4, 200 * kMegabit, 50 * kMegabit, interleaved);
    const auto plans = plans_on(fabric, "hierarchical", Collective::kAllReduce, 4);
    EXPECT_NEAR(busiest(fabric, plans, Routes::Kind::kUp), 1, 1e-9);
    EXPECT_NEAR(busiest(fabric, plans, Routes::Kind::kDown), 1, 1e-9);
    EXPECT_NEAR(busiest(fabric, plans, Routes::Kind::kEgress), 1.75, 1e-9);
    EXPECT_NEAR(busiest(fabric, plans, Routes::Kind::kIngress), 1.75, 1e-9);
  }
}

TEST(Loads, HierarchicalOverManyRacks) {
  for (const int count : {3, 4, 5}) {
    const Fabric fabric = racks(count, 4, 200 * kMegabit, 50 * kMegabit, true);
    const auto plans = plans_on(fabric, "hierarchical", Collective::kAllReduce, 4);
    EXPECT_NEAR(busiest(fabric, plans, Routes::Kind::kUp), 2.0 * (count - 1) / count, 1e-9);
    EXPECT_NEAR(busiest(fabric, plans, Routes::Kind::kDown), 2.0 * (count - 1) / count, 1e-9);
  }
}

TEST(Loads, HierarchicalWithRanksOfOneHostShareItsNic) {
  const Fabric fabric = Fabric::uniform(4, 3, 1e9);
  const auto plans = plans_on(fabric, "hierarchical", Collective::kAllReduce, 3);
  EXPECT_NEAR(busiest(fabric, plans, Routes::Kind::kEgress), 2.0 * 3 / 4, 1e-9);
  EXPECT_NEAR(busiest(fabric, plans, Routes::Kind::kIngress), 2.0 * 3 / 4, 1e-9);
}

TEST(Loads, HierarchicalEntersEachRackOnce) {
  const Fabric fabric = racks(2, 4, 200 * kMegabit, 50 * kMegabit, true);
  const auto gathered = plans_on(fabric, "hierarchical", Collective::kAllGather, 4);
  EXPECT_NEAR(busiest(fabric, gathered, Routes::Kind::kUp), 4, 1e-9);
  const auto scattered = plans_on(fabric, "hierarchical", Collective::kReduceScatter, 4);
  EXPECT_NEAR(busiest(fabric, scattered, Routes::Kind::kUp), 4, 1e-9);
  const auto sent = plans_on(fabric, "hierarchical", Collective::kBroadcast, 1, 5);
  EXPECT_NEAR(busiest(fabric, sent, Routes::Kind::kUp), 1, 1e-9);
}

TEST(Loads, WalksEnterEachRackOnce) {
  const Fabric fabric = racks(2, 4, 200 * kMegabit, 50 * kMegabit, true);
  const auto ring = plans_on(fabric, "ring", Collective::kAllReduce);
  EXPECT_NEAR(busiest(fabric, ring, Routes::Kind::kUp), 2.0 * 7 / 8, 1e-9);
  const auto chain = plans_on(fabric, "chain", Collective::kBroadcast, 0, 3);
  EXPECT_NEAR(busiest(fabric, chain, Routes::Kind::kUp), 1, 1e-9);
  const auto halving = plans_on(fabric, "halving_doubling", Collective::kAllReduce);
  EXPECT_NEAR(busiest(fabric, halving, Routes::Kind::kUp), 1, 1e-9);
  const auto ccube = plans_on(fabric, "ccube", Collective::kAllReduce);
  EXPECT_NEAR(busiest(fabric, ccube, Routes::Kind::kUp), 1, 1e-9);
  EXPECT_NEAR(busiest(fabric, ccube, Routes::Kind::kEgress), 2, 1e-9);
}

TEST(Loads, CcubeTakesPrivateLinks) {
  const Fabric fabric = star_of_links();
  const auto plans = plans_on(fabric, "ccube", Collective::kAllReduce);
  EXPECT_EQ(busiest(fabric, plans, Routes::Kind::kEgress), 0);
  EXPECT_EQ(busiest(fabric, plans, Routes::Kind::kLink), 1);
  EXPECT_NEAR(bound(fabric, plans), 1 / (100 * kMegabit), 1e-12);
}

// Every host has links to three others, so that two trees need not share any.
TEST(Loads, DoubleCcubeSpreadsOverTheLinks) {
  Fabric fabric = Fabric::uniform(8, 1, 20 * kMegabit);
  for (const auto& [a, b] : {std::pair(0, 1),
                             {0, 2},
                             {0, 3},
                             {1, 2},
                             {1, 3},
                             {2, 3},
                             {4, 5},
                             {4, 6},
                             {4, 7},
                             {5, 6},
                             {5, 7},
                             {6, 7},
                             {0, 4},
                             {1, 5},
                             {2, 6},
                             {3, 7}}) {
    fabric.links.push_back({a, b, 100 * kMegabit, 30e-6});
  }
  const auto one = plans_on(fabric, "ccube", Collective::kAllReduce);
  EXPECT_NEAR(busiest(fabric, one, Routes::Kind::kLink), 1, 1e-9);
  for (const auto op : {Collective::kAllReduce, Collective::kBroadcast, Collective::kReduce}) {
    const auto two = plans_on(fabric, "ccube", op, 2, op == Collective::kAllReduce ? -1 : 5);
    EXPECT_EQ(two[0].algorithm, "ccube:2");
    EXPECT_EQ(busiest(fabric, two, Routes::Kind::kEgress), 0);
    EXPECT_NEAR(busiest(fabric, two, Routes::Kind::kLink), 0.5, 1e-9);
  }
}

TEST(Loads, TorusMovesAboutAsMuchAsARing) {
  for (const auto& [n, columns] : {std::pair(4, 2), {12, 3}, {12, 4}, {24, 6}, {33, 11}}) {
    const Loads loads = measure_loads(
        plans_of("torus", {Collective::kAllReduce, n, -1, nullptr, columns}), nullptr);
    EXPECT_LE(*std::ranges::max_element(loads.sent), 2 + 1e-9) << n;
    EXPECT_LE(*std::ranges::max_element(loads.received), 2 + 1e-9) << n;
    const Loads scattered = measure_loads(
        plans_of("torus", {Collective::kReduceScatter, n, -1, nullptr, columns}), nullptr);
    for (const double sent : scattered.sent) EXPECT_NEAR(sent, n - 1, 1e-9) << n;
  }
}

// Rows are hosts: a part each passes between two of them.
TEST(Loads, TorusOfHostsShareTheirNic) {
  const Fabric fabric = Fabric::uniform(4, 3, 1e9);
  const auto plans = plans_on(fabric, "torus", Collective::kAllReduce, 3);
  EXPECT_NEAR(busiest(fabric, plans, Routes::Kind::kEgress), 2, 1e-9);
  EXPECT_NEAR(busiest(fabric, plans, Routes::Kind::kIngress), 2, 1e-9);
}

// However the ranks lie, a NIC carries the least that is possible, and hears from one host.
TEST(Loads, BlueConnectMovesTheLeastThroughEachNic) {
  for (const bool is_interleaved : {false, true}) {
    Fabric fabric = Fabric::uniform(4, 3, 1e9);
    if (is_interleaved) {
      for (size_t rank = 0; rank < fabric.host_of.size(); ++rank) {
        fabric.host_of[rank] = static_cast<int>(rank % 4);
      }
    }
    const auto plans = plans_on(fabric, "blueconnect", Collective::kAllReduce);
    EXPECT_NEAR(busiest(fabric, plans, Routes::Kind::kEgress), 1.5, 1e-9);
    EXPECT_NEAR(busiest(fabric, plans, Routes::Kind::kIngress), 1.5, 1e-9);
    EXPECT_EQ(Simulator(plans, fabric).incast_rate(), std::numeric_limits<double>::infinity());
  }
}

TEST(Loads, BlueConnectIsForThreeHostsOfEquallyManyRanks) {
  const auto applies = [](const Fabric& fabric) {
    for (const Generator& generator : generators()) {
      if (generator.name != "blueconnect") continue;
      return generator.applies({Collective::kAllReduce, fabric.world_size(), -1, &fabric});
    }
    return false;
  };
  EXPECT_TRUE(applies(Fabric::uniform(3, 2, 1e9)));
  EXPECT_FALSE(applies(Fabric::uniform(2, 4, 1e9)));
  EXPECT_FALSE(applies(Fabric::uniform(4, 1, 1e9)));
  Fabric uneven = Fabric::uniform(3, 2, 1e9);
  uneven.host_of.back() = 0;
  EXPECT_FALSE(applies(uneven));
}

// The best packing: the links' 300 and half of the switch's 3 x 20, over trees of three edges.
TEST(Loads, BlinkPacksPrivateLinksAndTheSwitch) {
  const Fabric fabric = star_of_links();
  const auto plans = plans_on(fabric, "blink", Collective::kAllReduce);
  EXPECT_LE(bound(fabric, plans), 1.04 / (110 * kMegabit));
  EXPECT_LE(plans[0].part_weights.size(), 8);
  const auto broadcast = plans_on(fabric, "blink", Collective::kBroadcast, 0, 0);
  EXPECT_LE(bound(fabric, broadcast), 1 / (100 * kMegabit));
}

TEST(Loads, BlinkEntersEachRackOnce) {
  const Fabric fabric = racks(2, 4, 200 * kMegabit, 50 * kMegabit, true);
  const auto plans = plans_on(fabric, "blink", Collective::kAllReduce);
  EXPECT_NEAR(busiest(fabric, plans, Routes::Kind::kUp), 1, 1e-9);
  EXPECT_LE(bound(fabric, plans), 1.001 / (50 * kMegabit));
}

// Two hosts of half the speed: no host can be spared, but the fast ones can do the work.
TEST(Loads, BlinkSparesSlowHosts) {
  Fabric fabric = Fabric::uniform(6, 1, 100 * kMegabit);
  for (const size_t host : {1, 4})
    fabric.hosts[host].egress = fabric.hosts[host].ingress = 50 * kMegabit;
  const auto plans = plans_on(fabric, "blink", Collective::kAllReduce);
  EXPECT_LE(bound(fabric, plans), 1.1 / (50 * kMegabit));
}

TEST(Loads, MultiTreeOnOneSwitchMovesTheLeast) {
  for (const int n : {2, 5, 8}) {
    const Fabric fabric = Fabric::uniform(n, 1, 1e9);
    const auto plans = plans_on(fabric, "multitree", Collective::kAllReduce);
    EXPECT_NEAR(busiest(fabric, plans, Routes::Kind::kEgress), 2.0 * (n - 1) / n, 1e-9);
    EXPECT_NEAR(busiest(fabric, plans, Routes::Kind::kIngress), 2.0 * (n - 1) / n, 1e-9);
  }
}

TEST(Loads, MultiTreeCrossesSlowCablesSeldom) {
  const Fabric fabric = racks(2, 4, 200 * kMegabit, 50 * kMegabit, true);
  const auto plans = plans_on(fabric, "multitree", Collective::kAllReduce);
  EXPECT_LE(busiest(fabric, plans, Routes::Kind::kUp), 1.25);
}

}  // namespace
}  // namespace q7x2
