// Routes: which resources traffic takes, what a message costs there, and what was measured of
// pairs.
#include "fabric/routes.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"

namespace q7x2 {
namespace {

constexpr double kRate = 1e9;

std::vector<std::string> names(const Routes& routes, const Routes::Route& route) {
  std::vector<std::string> list;
  for (const int resource : route.resources) {
    list.push_back(routes.resources()[static_cast<size_t>(resource)].name);
  }
  return list;
}

/// Hosts of four ranks, the first two bound to node 0, the others to node 1.
Fabric two_nodes_each(int hosts) {
  Fabric fabric = Fabric::uniform(hosts, 4, kRate);
  for (int rank = 0; rank < fabric.world_size(); ++rank) {
    fabric.bindings.push_back({rank % 4 / 2, std::to_string(rank % 4)});
  }
  return fabric;
}

TEST(Routes, GoThroughNicsAndCables) {
  Fabric fabric = Fabric::uniform(3, 2, kRate);
  fabric.racks = {{"r0", kRate, kRate}, {"r1", kRate / 2, kRate}};
  fabric.hosts[2].rack = 1;
  const Routes routes(fabric);
  using Names = std::vector<std::string>;
  EXPECT_EQ(names(routes, routes.between(0, 1)), (Names{"memory h0"}));
  EXPECT_EQ(names(routes, routes.between(0, 2)), (Names{"egress h0", "ingress h1"}));
  EXPECT_EQ(names(routes, routes.between(4, 1)),
            (Names{"egress h2", "up rack 1", "down rack 0", "ingress h0"}));
  EXPECT_EQ(routes.between(4, 1).rate, kRate / 2);
  EXPECT_EQ(routes.between(0, 2).cost.alpha, fabric.network.alpha);
}

TEST(Routes, AMeasuredPairHasItsOwnAlpha) {
  Fabric fabric = Fabric::uniform(3, 1, kRate);
  fabric.network = {30e-6, 3e-6, true};
  fabric.pairs = {{.from = 0, .to = 1, .alpha = 300e-6}, {.from = 1, .to = 2, .alpha = 10e-6}};
  const Routes routes(fabric);
  EXPECT_EQ(routes.between(0, 1).cost.alpha, 300e-6);
  EXPECT_EQ(routes.between(0, 1).cost.overhead, 3e-6);
  EXPECT_EQ(routes.between(1, 2).cost.alpha, 10e-6);
  EXPECT_EQ(routes.between(1, 0).cost.alpha, 30e-6) << "was not measured";
  EXPECT_EQ(routes.between(0, 1).rate, kRate);
}

TEST(Routes, APairThatTakesAboutAsLongAsOthersSaysNothingNew) {
  Fabric fabric = Fabric::uniform(2, 1, kRate);
  fabric.network = {3e-6, 4e-6, true};
  fabric.pairs = {{.from = 0, .to = 1, .alpha = 5e-6}, {.from = 1, .to = 0, .alpha = 7e-6}};
  const Routes routes(fabric);
  EXPECT_EQ(routes.between(0, 1).cost.alpha, 3e-6) << "13 us with the overheads, not 11 us";
  EXPECT_EQ(routes.between(1, 0).cost.alpha, 7e-6);
}

TEST(Routes, APairWithinItsScatterSaysNothingNew) {
  Fabric fabric = Fabric::uniform(2, 1, kRate);
  fabric.network = {30e-6, 3e-6, true};
  fabric.pairs = {{.from = 0, .to = 1, .alpha = 45e-6, .alpha_spread = 0.5},
                  {.from = 1, .to = 0, .alpha = 50e-6, .alpha_spread = 0.5}};
  const Routes routes(fabric);
  EXPECT_EQ(routes.between(0, 1).cost.alpha, 30e-6);
  EXPECT_EQ(routes.between(1, 0).cost.alpha, 50e-6);
}

TEST(Routes, ASlowPairHasAResourceOfItsOwn) {
  Fabric fabric = Fabric::uniform(3, 1, kRate);
  const size_t before = Routes(fabric).resources().size();
  fabric.pairs = {{.from = 0, .to = 1, .rate = kRate / 8, .solo = kRate / 4},
                  {.from = 1, .to = 0, .rate = kRate / 8},
                  {.from = 0, .to = 2, .solo = 0.95 * kRate}};
  const Routes routes(fabric);
  EXPECT_EQ(routes.resources().size(), before + 1) << "no others are slow with nobody else talking";
  EXPECT_EQ(names(routes, routes.between(0, 1)),
            (std::vector<std::string>{"egress h0", "ingress h1", "pair h0 -> h1"}));
  EXPECT_EQ(routes.between(0, 1).rate, kRate / 4);
  EXPECT_EQ(routes.between(1, 0).rate, kRate);
  EXPECT_EQ(routes.between(0, 2).rate, kRate);
}

TEST(Routes, AConnectionThatDoesNotFillItsRouteHasAWindow) {
  Fabric fabric = Fabric::uniform(3, 1, kRate);
  fabric.burst = 1000;
  fabric.pairs = {{.from = 0, .to = 1, .alpha = 50e-3, .window = 3e6}};
  const Routes routes(fabric);
  const Routes::Route route = routes.between(0, 1);
  EXPECT_EQ(names(routes, route),
            (std::vector<std::string>{"egress h0", "ingress h1", "connection h0 -> h1"}));
  EXPECT_EQ(route.rate, kRate) << "of messages that fit into it";
  const Routes::Resource& window = routes.resources()[static_cast<size_t>(route.resources[2])];
  EXPECT_EQ(window.kind, Routes::Kind::kWindow);
  EXPECT_DOUBLE_EQ(window.rate, 3e6 / 100e-3);
  EXPECT_EQ(window.burst, 3e6);
  EXPECT_EQ(routes.resources()[static_cast<size_t>(route.resources[0])].burst, 1000);
  EXPECT_EQ(names(routes, routes.between(1, 0)).size(), 2U) << "was not measured";
}

TEST(Routes, APrivateLinkIsTakenWhateverThePairOnTheSharedNetworkIs) {
  Fabric fabric = Fabric::uniform(2, 1, kRate);
  fabric.links = {{0, 1, 2 * kRate, 5e-6}};
  fabric.pairs = {{.from = 0, .to = 1, .alpha = 1e-3, .solo = 1}};
  const Routes routes(fabric);
  EXPECT_EQ(names(routes, routes.between(0, 1)), (std::vector<std::string>{"link h0 -> h1"}));
  EXPECT_EQ(routes.between(0, 1).cost.alpha, 5e-6);
  EXPECT_EQ(routes.between(0, 1).rate, 2 * kRate);
}

TEST(Routes, TrafficBetweenNumaNodesTakesTheInterconnect) {
  Fabric fabric = two_nodes_each(2);
  fabric.interconnect = {3, kRate / 2, true};
  const Routes routes(fabric);
  const Routes::Route near = routes.between(0, 1);
  const Routes::Route far = routes.between(1, 2);
  EXPECT_EQ(names(routes, near), (std::vector<std::string>{"memory h0"}));
  EXPECT_EQ(names(routes, far), (std::vector<std::string>{"memory h0", "interconnect h0"}));
  EXPECT_DOUBLE_EQ(far.cost.alpha, 3 * near.cost.alpha);
  EXPECT_EQ(far.rate, kRate / 2);
  EXPECT_EQ(names(routes, routes.between(0, 4)),
            (std::vector<std::string>{"egress h0", "ingress h1"}));
}

TEST(Routes, RanksThatAreNotBoundCrossNothing) {
  Fabric fabric = two_nodes_each(1);
  fabric.bindings[0].numa_node = -1;
  const Routes routes(fabric);
  EXPECT_EQ(routes.between(0, 2).resources.size(), 1U);
  EXPECT_EQ(routes.between(1, 2).resources.size(), 2U);
  for (Fabric::Binding& binding : fabric.bindings) binding.numa_node = 0;
  const Routes one_node(fabric);
  EXPECT_TRUE(std::ranges::none_of(one_node.resources(), [](const Routes::Resource& resource) {
    return resource.kind == Routes::Kind::kInterconnect;
  }));
}

TEST(Routes, KeysAreEqualWhereRoutesAre) {
  Fabric fabric = two_nodes_each(3);
  fabric.pairs = {{.from = 0, .to = 2, .alpha = 1e-3, .solo = 1e6}};
  const Routes routes(fabric);
  const int n = fabric.world_size();
  for (int a = 0; a < n * n; ++a) {
    for (int b = 0; b < n * n; ++b) {
      if (a / n == a % n || b / n == b % n) continue;
      if (routes.key(a / n, a % n) != routes.key(b / n, b % n)) continue;
      const Routes::Route first = routes.between(a / n, a % n);
      const Routes::Route second = routes.between(b / n, b % n);
      EXPECT_EQ(names(routes, first), names(routes, second));
      EXPECT_EQ(first.cost.alpha, second.cost.alpha);
    }
  }
  EXPECT_NE(routes.key(0, 1), routes.key(0, 2));
  EXPECT_EQ(routes.key(0, 2), routes.key(1, 3));
}

TEST(Routes, TheLargestAlphaIsThatOfAllPairs) {
  Fabric fabric = two_nodes_each(4);
  fabric.network.measured = true;
  fabric.pairs = {{.from = 0, .to = 1, .alpha = 1e-6},
                  {.from = 1, .to = 0, .alpha = 2e-6},
                  {.from = 2, .to = 3, .alpha = 1e-3}};
  fabric.links = {{0, 2, kRate, 4e-6}};
  const Routes routes(fabric);
  const auto slowly = [&](const std::vector<int>& ranks) {
    double largest = 0;
    for (const int a : ranks) {
      for (const int b : ranks) {
        if (a != b) largest = std::max(largest, routes.between(a, b).cost.alpha);
      }
    }
    return largest;
  };
  std::vector<int> all(16);
  std::iota(all.begin(), all.end(), 0);
  for (const std::vector<int>& ranks :
       {all, {}, {3}, {0, 1}, {0, 2}, {0, 4}, {0, 8}, {0, 1, 5, 9}, {4, 12}, {8, 12}, {12, 8, 0}}) {
    EXPECT_EQ(routes.largest_alpha(ranks), slowly(ranks)) << ::testing::PrintToString(ranks);
  }
}

// Its memory must not grow with the pairs of hosts.
TEST(Routes, ThousandsOfHostsHaveFewResources) {
  const Routes routes(Fabric::uniform(4096, 1, kRate));
  EXPECT_LE(routes.resources().size(), 4096U * 3 + 2);
  EXPECT_EQ(routes.between(0, 4095).rate, kRate);
}

TEST(Fabric, NearOrderKeepsNumaNodesTogether) {
  Fabric fabric = Fabric::uniform(2, 4, kRate);
  for (int rank = 0; rank < 8; ++rank) fabric.bindings.push_back({rank % 2, ""});
  EXPECT_EQ(fabric.near_order(), (std::vector<int>{0, 2, 1, 3, 4, 6, 5, 7}));
  EXPECT_EQ(fabric.subset({1, 2, 7}).numa_of(1), 0);
  fabric.bindings.pop_back();
  EXPECT_THROW(fabric.validate(), Error);
}

TEST(Fabric, RatesAreTheHostsOwnOrTheFabrics) {
  Fabric fabric = Fabric::uniform(2, 2, kRate);
  fabric.copy_rate = 10;
  fabric.reduce_rate = 20;
  fabric.codecs = {{"int8", 1, 2}, {"int4", 3, 4}};
  fabric.hosts[1].rates = {{"cpu", 5, 0, {{"int8", 7, 8}}}, {"cuda", 100, 0, {}}};
  EXPECT_EQ(fabric.copy_rate_of(0), 10);
  EXPECT_EQ(fabric.copy_rate_of(2), 5);
  EXPECT_EQ(fabric.reduce_rate_of(2), 20) << "of a rate that is not known";
  EXPECT_EQ(fabric.copy_rate_of(2, "cuda"), 100);
  EXPECT_EQ(fabric.copy_rate_of(0, "cuda"), 0) << "the Fabric's rates are those of CPUs";
  EXPECT_EQ(fabric.host_codec_rate(1, "int8")->encode, 7);
  EXPECT_EQ(fabric.host_codec_rate(1, "int4")->encode, 3);
  EXPECT_EQ(fabric.host_codec_rate(0, "int8")->encode, 1);
  EXPECT_EQ(fabric.host_codec_rate(1, "int8", "cuda"), nullptr);
  EXPECT_EQ(fabric.host_codec_rate(0, "sign"), nullptr);
}

}  // namespace
}  // namespace q7x2
