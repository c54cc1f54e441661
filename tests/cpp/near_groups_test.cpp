// Near groups: hosts that are near each other by latency, and none out of noise.
#include "fabric/near_groups.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "executor/probe/tournament.h"
#include "fabric/infer.h"
#include "fabric/routes.h"

namespace q7x2 {
namespace {

constexpr double kRate = 25e6;

/// Hosts of several sites, whose pings are longer by chance: nothing makes them shorter.
struct Sites {
  std::vector<int> site_of;  // by host
  double near = 60e-6;       // seconds one way
  double far = 10e-3;
  double noise = 0;        // of times: up to so many times as long
  double disturbed = 0;    // the share of pings that a busy processor makes longer
  double disturbance = 0;  // by that many seconds

  Measurements measure(unsigned seed) const {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> unit(0, 1);
    Measurements measured;
    const int hosts = static_cast<int>(site_of.size());
    for (int host = 0; host < hosts; ++host) {
      measured.host_of.push_back(host);
      measured.hosts.push_back({.name = "h" + std::to_string(host), .key = std::to_string(host)});
    }
    for (const auto& round : tournament(hosts, 16)) {
      auto& flows = measured.rounds.emplace_back();
      for (const auto& [a, b] : round) {
        for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
          flows.push_back({from, to, kRate * (0.9 + 0.2 * unit(random)), 0.1});
        }
        const bool is_near = site(a) == site(b);
        double one_way = (is_near ? near : far) * (1 + noise * unit(random));
        if (unit(random) < disturbed) one_way += disturbance * unit(random);
        measured.pings.push_back({a, b, 2 * one_way, 0.1, 3e-6});
      }
    }
    return measured;
  }

  int site(int host) const { return site_of[static_cast<size_t>(host)]; }
};

std::vector<int> racks_of(const Fabric& fabric) {
  std::vector<int> racks;
  for (const Fabric::Host& host : fabric.hosts) racks.push_back(host.rack);
  return racks;
}

TEST(NearGroups, AreFoundInAnyOrderAndNoise) {
  const std::vector<std::vector<int>> orders = {
      {0, 0, 1, 1},          {0, 1, 0, 1},          {0, 1, 1, 1, 0},
      {0, 0, 0, 1, 2, 2, 1}, {0, 1, 2, 0, 1, 2, 0}, {0, 0, 0, 0, 1, 1, 1, 1, 0, 1, 2, 2, 2, 0}};
  for (const auto& order : orders) {
    for (const double far : {1e-3, 10e-3, 80e-3}) {
      for (unsigned seed = 0; seed < 50; ++seed) {
        const Sites sites{.site_of = order, .far = far, .noise = 0.5};
        const Fabric fabric = infer(sites.measure(seed));
        ASSERT_EQ(racks_of(fabric), order) << "seed " << seed;
        const Routes routes(fabric);
        for (size_t a = 0; a < order.size(); ++a) {
          for (size_t b = 0; b < order.size(); ++b) {
            if (a == b) continue;
            const double alpha =
                routes.between_hosts(static_cast<int>(a), static_cast<int>(b)).cost.alpha;
            const double least = order[a] == order[b] ? sites.near : far;
            EXPECT_GT(alpha, 0.8 * least);
            EXPECT_LT(alpha, 1.8 * least);
          }
        }
        for (const Fabric::Rack& rack : fabric.racks) EXPECT_EQ(rack.up, 0) << "no cable is slow";
      }
    }
  }
}

TEST(NearGroups, ManyHostsThatDidNotAllMeet) {
  std::vector<int> order;
  for (int host = 0; host < 256; ++host) order.push_back(host / 64);
  const Sites sites{.site_of = order, .noise = 0.5};
  const Fabric fabric = infer(sites.measure(1));
  EXPECT_EQ(racks_of(fabric), order);
  const Routes routes(fabric);
  // Two that never met.
  EXPECT_NEAR(routes.between_hosts(3, 198).cost.alpha, 12e-3, 4e-3);
  EXPECT_LT(routes.between_hosts(3, 46).cost.alpha, 200e-6);
}

TEST(NearGroups, HostsOfOneSwitchAreOneGroupHoweverNoisy) {
  for (const size_t hosts : {2U, 3U, 4U, 8U, 16U, 40U}) {
    for (unsigned seed = 0; seed < 100; ++seed) {
      Sites sites{.site_of = std::vector<int>(hosts), .noise = 1};
      EXPECT_EQ(infer(sites.measure(seed)).racks.size(), 1U);
      if (hosts < 4) continue;
      sites.disturbed = 0.15;
      sites.disturbance = 5e-3;
      const Fabric fabric = infer(sites.measure(seed));
      // What is wrong with a host's only ping cannot be told from distance.
      EXPECT_LE(fabric.racks.size(), 2U) << hosts << " hosts, seed " << seed;
    }
  }
}

TEST(NearGroups, OneFarPairMakesNoGroup) {
  for (int far = 1; far < 5; ++far) {
    Measurements measured = Sites{.site_of = std::vector<int>(5)}.measure(1);
    for (Measurements::Ping& ping : measured.pings) {
      if (ping.a == 0 && ping.b == far) ping.round_trip = 20e-3;
    }
    const Fabric fabric = infer(measured);
    EXPECT_EQ(fabric.racks.size(), 1U);
    EXPECT_NEAR(Routes(fabric).between_hosts(0, far).cost.alpha, 10e-3, 1e-4);
  }
}

TEST(NearGroups, HostsThatAreAllFarFromEachOtherAreOneGroup) {
  const Fabric fabric = infer(Sites{.site_of = {0, 1, 2, 3}}.measure(1));
  EXPECT_EQ(fabric.racks.size(), 1U);
  EXPECT_NEAR(fabric.network.alpha, 10e-3, 1e-4);
}

TEST(NearGroups, APingThatVariesMuchIsNotFar) {
  std::vector<Measurements::Ping> pings;
  for (int a = 0; a < 4; ++a) {
    for (int b = a + 1; b < 4; ++b) {
      const bool crosses = a / 2 != b / 2;
      pings.push_back({a, b, crosses ? 4e-3 : 100e-6, crosses ? 2.0 : 0.1});
    }
  }
  EXPECT_EQ(near_groups(4, pings), (std::vector<int>{0, 0, 0, 0}));
  for (Measurements::Ping& ping : pings) ping.spread = 0.1;
  EXPECT_EQ(near_groups(4, pings), (std::vector<int>{0, 0, 1, 1}));
}

TEST(NearGroups, RacksWithSlowCablesAreNoLongerThanAGroup) {
  // Hosts 0 to 3 are two racks of one site, 4 to 7 another site.
  Sites sites{.site_of = {0, 0, 0, 0, 1, 1, 1, 1}};
  Measurements measured = sites.measure(1);
  for (auto& round : measured.rounds) {
    for (Measurements::Flow& flow : round) {
      if ((flow.from < 2) != (flow.to < 2)) flow.rate /= 10;
    }
  }
  EXPECT_EQ(racks_of(infer(measured)), (std::vector<int>{0, 0, 1, 1, 2, 2, 2, 2}));
}

// Of each two sites one round has streamed, over connections with windows.
TEST(NearGroups, PairsThatHaveNotStreamedHaveTheWindowOfThoseThatHave) {
  Sites sites{.site_of = {0, 0, 1, 1}};
  Measurements measured = sites.measure(1);
  bool is_first = true;
  for (auto& round : measured.rounds) {
    const bool is_far = sites.site(round[0].from) != sites.site(round[0].to);
    if (!is_far) continue;
    if (!std::exchange(is_first, false)) round.clear();
    for (size_t i = 0; i < round.size(); ++i) {
      round[i].window = 3e6 + 1e5 * static_cast<double>(i);
    }
  }
  const Fabric fabric = infer(measured);
  EXPECT_EQ(racks_of(fabric), sites.site_of);
  int far = 0;
  for (const Fabric::Pair& pair : fabric.pairs) {
    if (sites.site(pair.from) == sites.site(pair.to)) {
      EXPECT_EQ(pair.window, 0);
      continue;
    }
    ++far;
    EXPECT_EQ(pair.window, fabric.pairs[1].window) << "they may well be equal";
    EXPECT_NEAR(pair.window, 3e6, 0.4e6);
  }
  EXPECT_EQ(far, 8);
}

TEST(DistancesFromCentre, FitStars) {
  const std::vector<double> distances = {1e-3, 4e-3, 0, 20e-3};
  std::vector<FarPing> pings;
  for (int a = 0; a < 4; ++a) {
    for (int b = a + 1; b < 4; ++b) {
      pings.push_back(
          {a, b, 50e-6 + distances[static_cast<size_t>(a)] + distances[static_cast<size_t>(b)]});
    }
  }
  const std::vector<double> fit = distances_from_centre(4, pings, 50e-6);
  for (const FarPing& ping : pings) {
    const double alpha =
        50e-6 + fit[static_cast<size_t>(ping.a)] + fit[static_cast<size_t>(ping.b)];
    EXPECT_NEAR(alpha, ping.alpha, 0.01 * ping.alpha);
  }
}

}  // namespace
}  // namespace q7x2
