// From measurements to a Fabric: racks, cables, NICs, private links, and no racks out of noise.
#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "executor/probe/tournament.h"
#include "fabric/infer.h"

namespace q7x2 {
namespace {

/// A network whose flows share its cables fairly, measured in the rounds of the real tournament.
struct Network {
  std::vector<int> rack;    // by host
  std::vector<double> nic;  // by host
  double cable = 0;         // of each rack; 0: none
  double noise = 0;         // rates are multiplied by 1 - noise ... 1 + noise

  Measurements measure(unsigned seed) const {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> factor(1 - noise, 1 + noise);
    Measurements measured;
    const int hosts = static_cast<int>(rack.size());
    for (int host = 0; host < hosts; ++host) {
      measured.host_of.push_back(host);
      measured.hosts.push_back({.name = "h" + std::to_string(host), .key = std::to_string(host)});
    }
    for (const auto& round : tournament(hosts, 16)) {
      std::vector<int> crossing(rack.size());  // flows out of each rack
      for (const auto& [a, b] : round) {
        if (rack_of(a) == rack_of(b)) continue;
        ++crossing[rack_of(a)];
        ++crossing[rack_of(b)];
      }
      auto& flows = measured.rounds.emplace_back();
      for (const auto& [a, b] : round) {
        for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
          double rate = std::min(nic_of(from), nic_of(to));
          if (rack_of(from) != rack_of(to) && cable > 0) {
            rate = std::min(rate, cable / std::max(crossing[rack_of(from)], crossing[rack_of(to)]));
          }
          flows.push_back({from, to, rate * factor(random), noise});
        }
        measured.pings.push_back({a, b, 100e-6, 0.1, 5e-6});
      }
    }
    return measured;
  }

 private:
  size_t rack_of(int host) const { return static_cast<size_t>(rack[static_cast<size_t>(host)]); }
  double nic_of(int host) const { return nic[static_cast<size_t>(host)]; }
};

std::vector<int> racks_of(const Fabric& fabric) {
  std::vector<int> racks;
  for (const auto& host : fabric.hosts) racks.push_back(host.rack);
  return racks;
}

TEST(Tournament, EveryTwoMeetOnceAndNobodyTwiceInARound) {
  for (int hosts = 2; hosts <= 16; ++hosts) {
    std::set<std::pair<int, int>> met;
    for (const auto& round : tournament(hosts, 16)) {
      std::set<int> busy;
      for (const auto& [a, b] : round) {
        EXPECT_TRUE(a < b && b < hosts);
        EXPECT_TRUE(met.emplace(a, b).second) << a << " and " << b << " meet twice";
        EXPECT_TRUE(busy.insert(a).second && busy.insert(b).second);
      }
    }
    EXPECT_EQ(met.size(), static_cast<size_t>(hosts * (hosts - 1) / 2));
  }
}

TEST(Tournament, OfManyHostsTheRoundsGrowWithTheLogarithm) {
  const auto rounds = tournament(1000, 16);
  EXPECT_EQ(rounds.size(), 10U);
  for (const auto& round : rounds) {
    std::set<int> busy;
    for (const auto& [a, b] : round) {
      EXPECT_TRUE(0 <= a && a < b && b < 1000);
      EXPECT_TRUE(busy.insert(a).second && busy.insert(b).second);
    }
    EXPECT_GT(round.size(), 200U);
  }
}

TEST(Infer, TwoRacksInAnyOrder) {
  const std::vector<std::vector<int>> orders = {
      {0, 0, 0, 0, 1, 1, 1, 1}, {0, 1, 0, 1, 0, 1, 0, 1}, {0, 1, 1, 0, 0, 0, 1, 1}};
  for (const auto& order : orders) {
    for (unsigned seed = 0; seed < 50; ++seed) {
      const Network network{order, std::vector<double>(8, 25e6), 6.25e6, 0.3};
      const Fabric fabric = infer(network.measure(seed));
      EXPECT_EQ(racks_of(fabric), order);
      ASSERT_EQ(fabric.racks.size(), 2U);
      for (const auto& rack : fabric.racks) {
        EXPECT_NEAR(rack.up, 6.25e6, 0.2 * 6.25e6);
        EXPECT_NEAR(rack.down, 6.25e6, 0.2 * 6.25e6);
      }
      for (const auto& host : fabric.hosts) EXPECT_NEAR(host.egress, 25e6, 0.3 * 25e6);
    }
  }
}

// With racks of two all flows of a round cross or none does, as with many hosts. Else a round in
// which few cross does not fill a cable that is shared 2:1.
TEST(Infer, ACableThatIsSharedTwoToOneMakesRacks) {
  struct Case {
    std::vector<int> rack;
    int shared;  // hosts' rates through a cable of one
  };
  const std::vector<int> pairs = {0, 0, 1, 1};
  const std::vector<int> fours = {0, 0, 0, 0, 1, 1, 1, 1};
  std::vector<int> halves(32);
  std::fill(halves.begin() + 16, halves.end(), 1);
  const unsigned first = std::random_device()();
  for (const Case& each : {Case{pairs, 2}, Case{halves, 2}, Case{pairs, 3}, Case{fours, 3},
                           Case{pairs, 4}, Case{fours, 4}}) {
    const double cable = 25e6 * static_cast<double>(std::ranges::count(each.rack, 0)) / each.shared;
    for (unsigned seed = first; seed < first + 50; ++seed) {
      SCOPED_TRACE(std::to_string(each.rack.size()) + " hosts, " + std::to_string(each.shared) +
                   ":1, seed " + std::to_string(seed));
      const Network network{each.rack, std::vector<double>(each.rack.size(), 25e6), cable, 0.15};
      const Fabric fabric = infer(network.measure(seed));
      EXPECT_EQ(racks_of(fabric), each.rack);
      for (const auto& rack : fabric.racks) EXPECT_NEAR(rack.up, cable, 0.2 * cable);
      const Network flat{std::vector<int>(each.rack.size()),
                         std::vector<double>(each.rack.size(), 25e6), 0, 0.15};
      EXPECT_EQ(infer(flat.measure(seed)).racks.size(), 1U) << "without a cable";
    }
  }
}

TEST(Infer, ASlowPairIsSuspectedAndAnUplinkIsNot) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    const Network racks{{0, 1, 0, 1, 0, 1, 0, 1}, std::vector<double>(8, 25e6), 6.25e6, 0.2};
    EXPECT_TRUE(slow_pairs(racks.measure(seed), 8).empty()) << "seed " << seed;
    const Network flat{std::vector<int>(8), std::vector<double>(8, 25e6), 0, 0.2};
    Measurements measured = flat.measure(seed);
    EXPECT_TRUE(slow_pairs(measured, 8).empty()) << "seed " << seed;
    for (auto& round : measured.rounds) {
      for (Measurements::Flow& flow : round) {
        if (flow.from + flow.to == 1 || (flow.from == 3 && flow.to == 6)) flow.rate /= 10;
      }
    }
    std::vector<std::pair<int, int>> pairs = slow_pairs(measured, 8);
    std::ranges::sort(pairs);
    EXPECT_EQ(pairs, (std::vector<std::pair<int, int>>{{0, 1}, {3, 6}})) << "seed " << seed;
    EXPECT_EQ(slow_pairs(measured, 1).size(), 1U);
  }
}

TEST(Infer, ThreeRacksOfDifferentSizes) {
  const std::vector<int> order = {0, 0, 1, 1, 1, 2, 2, 2, 2};
  const Network network{order, std::vector<double>(9, 125e6), 20e6, 0.1};
  const Fabric fabric = infer(network.measure(1));
  EXPECT_EQ(racks_of(fabric), order);
}

TEST(Infer, EqualHostsAreOneRackHoweverNoisy) {
  for (const size_t hosts : {2U, 3U, 4U, 8U, 16U}) {
    for (unsigned seed = 0; seed < 100; ++seed) {
      const Network network{std::vector<int>(hosts), std::vector<double>(hosts, 125e6), 0, 0.4};
      const Fabric fabric = infer(network.measure(seed));
      EXPECT_EQ(fabric.racks.size(), 1U) << hosts << " hosts, seed " << seed;
      EXPECT_EQ(fabric.racks[0].up, 0);
    }
  }
}

TEST(Infer, OneFlowThatStalledSplitsNothing) {
  Measurements measured =
      Network{std::vector<int>(4), std::vector<double>(4, 125e6), 0, 0}.measure(0);
  measured.rounds[1][0].rate = 1e6;
  measured.rounds[1][1].rate = 1e6;
  const Fabric fabric = infer(measured);
  EXPECT_EQ(fabric.racks.size(), 1U);
  for (const auto& host : fabric.hosts) EXPECT_DOUBLE_EQ(host.egress, 125e6);
}

TEST(Infer, NicsThatMayWellBeEqualAreEqual) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    const std::vector<double> nics = {125e6, 125e6, 125e6, 125e6, 50e6, 50e6};
    const Fabric fabric = infer(Network{std::vector<int>(6), nics, 0, 0.05}.measure(seed));
    std::set<double> rates;
    for (const auto& host : fabric.hosts) rates.insert({host.egress, host.ingress});
    ASSERT_EQ(rates.size(), 2U) << "seed " << seed;
    EXPECT_NEAR(*rates.begin(), 50e6, 0.03 * 50e6);
    EXPECT_NEAR(*rates.rbegin(), 125e6, 0.03 * 125e6);
  }
}

TEST(Infer, TheBurstIsThatOfMostFlows) {
  Measurements measured =
      Network{std::vector<int>(4), std::vector<double>(4, 125e6), 0, 0}.measure(0);
  EXPECT_EQ(infer(measured).burst, 0);
  for (auto& round : measured.rounds) {
    for (auto& flow : round) flow.burst = 8192;
  }
  EXPECT_EQ(infer(measured).burst, 0) << "what a receiver finds at once";
  for (auto& round : measured.rounds) {
    for (auto& flow : round) flow.burst = 131072;
  }
  measured.rounds[0][0].burst = 0;
  measured.rounds[1][0].burst = 1e6;
  EXPECT_EQ(infer(measured).burst, 131072);
}

TEST(Infer, ASlowNicIsNoRack) {
  const Network network{std::vector<int>(4), {125e6, 125e6, 12e6, 125e6}, 0, 0.1};
  const Fabric fabric = infer(network.measure(3));
  EXPECT_EQ(fabric.racks.size(), 1U);
  EXPECT_NEAR(fabric.hosts[2].egress, 12e6, 3e6);
  EXPECT_NEAR(fabric.hosts[2].ingress, 12e6, 3e6);
  EXPECT_NEAR(fabric.hosts[1].egress, 125e6, 25e6);
}

TEST(Infer, CostsAreMediansOfTheirKind) {
  Measurements measured = Network{{0, 0, 0}, {1e8, 1e8, 1e8}, 0, 0}.measure(0);
  measured.pings[0].round_trip = 1;  // one that waited for something
  measured.pings.push_back({0, 0, 4e-6, 0.1, 0.2e-6});
  const Fabric fabric = infer(measured);
  EXPECT_TRUE(fabric.network.measured && fabric.memory.measured);
  EXPECT_NEAR(fabric.network.alpha, 40e-6, 1e-9);  // half of 100 us, less two overheads
  EXPECT_NEAR(fabric.network.overhead, 5e-6, 1e-9);
  EXPECT_NEAR(fabric.memory.alpha, 1.6e-6, 1e-9);
}

TEST(Infer, OverheadNeverExplainsTheWholeTrip) {
  Measurements measured = Network{{0, 0}, {1e8, 1e8}, 0, 0}.measure(0);
  measured.pings[0].overhead = 1e-3;
  const Fabric fabric = infer(measured);
  EXPECT_GT(fabric.network.alpha, 0);
  EXPECT_NEAR(fabric.network.alpha + 2 * fabric.network.overhead, 50e-6, 1e-9);
}

// What a message takes is alpha and the overhead of the network at both ends.
TEST(Infer, PairsWithEqualPingsHaveEqualAlphas) {
  Measurements measured = Network{{0, 0, 0}, {1e8, 1e8, 1e8}, 0, 0}.measure(0);
  ASSERT_EQ(measured.pings.size(), 3U);
  measured.pings[1].overhead = 0;  // its ends did not share a core, for example
  const Fabric fabric = infer(measured);
  ASSERT_EQ(fabric.pairs.size(), 6U);
  for (const Fabric::Pair& pair : fabric.pairs) {
    EXPECT_NEAR(pair.alpha, fabric.network.alpha, 1e-9) << pair.from << " " << pair.to;
  }
}

TEST(Infer, APrivateWireBecomesALink) {
  Measurements measured = Network{{0, 0, 0}, {2.5e6, 2.5e6, 2.5e6}, 0, 0}.measure(0);
  measured.rounds.push_back({{0, 2, 12.5e6, 0, 1}, {2, 0, 12.0e6, 0, 1}});
  measured.pings.push_back({2, 0, 60e-6, 0, 5e-6, 1});
  const Fabric fabric = infer(measured);
  ASSERT_EQ(fabric.links.size(), 1U);
  EXPECT_EQ(fabric.links[0].a, 0);
  EXPECT_EQ(fabric.links[0].b, 2);
  EXPECT_NEAR(fabric.links[0].rate, 12.25e6, 1);
  EXPECT_NEAR(fabric.links[0].alpha, 20e-6, 1e-9);
  EXPECT_DOUBLE_EQ(fabric.hosts[0].egress, 2.5e6);
}

TEST(Infer, OneHostHasNoNetwork) {
  Measurements measured;
  measured.host_of = {0, 0};
  measured.hosts = {{.name = "h", .key = "k", .cores = 4, .rates = {"cpu", 1e10, 2e10, {}}}};
  const Fabric fabric = infer(measured);
  EXPECT_TRUE(fabric.one_host());
  EXPECT_EQ(fabric.copy_rate, 1e10);
  EXPECT_EQ(fabric.reduce_rate, 2e10);
  EXPECT_FALSE(fabric.network.measured);
}

Measurements hosts_at(const std::vector<double>& copy_rates) {
  Measurements measured;
  for (size_t host = 0; host < copy_rates.size(); ++host) {
    measured.host_of.push_back(static_cast<int>(host));
    const double copy = copy_rates[host];
    measured.hosts.push_back({.name = "h" + std::to_string(host),
                              .key = "",
                              .rates = {"cpu", copy, copy, {{"int8", copy / 2, copy}}}});
  }
  return measured;
}

TEST(Infer, AHostThatDiffersClearlyHasItsOwnRates) {
  const Fabric fabric = infer(hosts_at({10e9, 11e9, 9e9, 4e9}));
  EXPECT_DOUBLE_EQ(fabric.copy_rate, 9.5e9);
  EXPECT_DOUBLE_EQ(fabric.copy_rate_of(0), 9.5e9);
  EXPECT_DOUBLE_EQ(fabric.copy_rate_of(3), 4e9);
  EXPECT_DOUBLE_EQ(fabric.reduce_rate_of(3), 4e9);
  EXPECT_DOUBLE_EQ(fabric.host_codec_rate(3, "int8")->encode, 2e9);
  EXPECT_DOUBLE_EQ(fabric.host_codec_rate(1, "int8")->encode, 4.75e9);
  EXPECT_TRUE(fabric.hosts[1].rates.empty());
}

// Containers of one machine measure the same cores at the same time.
TEST(Infer, HostsOfOneMachineHaveItsRates) {
  Measurements measured = hosts_at({10e9, 3e9, 10e9});
  measured.hosts[0].hardware.machine = measured.hosts[1].hardware.machine = "m";
  const Fabric fabric = infer(measured);
  EXPECT_DOUBLE_EQ(fabric.copy_rate_of(1), 10e9);
  EXPECT_TRUE(fabric.hosts[1].rates.empty());
}

TEST(Infer, TheInterconnectIsMeasuredByPingsBetweenNodes) {
  Measurements measured = hosts_at({10e9});
  measured.host_of = {0, 0, 0};
  measured.pings = {{0, 0, 4e-6, 0, 0.4e-6, 0, false}, {0, 0, 9e-6, 0, 0.4e-6, 0, true}};
  Fabric fabric = infer(measured);
  // One way, less the overhead at both ends.
  EXPECT_NEAR(fabric.memory.alpha, 1.2e-6, 1e-9);
  EXPECT_NEAR(fabric.interconnect.alpha_factor, 3.7 / 1.2, 1e-6);
  EXPECT_TRUE(fabric.interconnect.measured);

  measured.pings.erase(measured.pings.begin());
  fabric = infer(measured);
  EXPECT_NEAR(fabric.memory.alpha, 3.7e-6, 1e-9);
  EXPECT_DOUBLE_EQ(fabric.interconnect.alpha_factor, 1);

  measured.pings.clear();
  EXPECT_FALSE(infer(measured).interconnect.measured);
}

}  // namespace
}  // namespace q7x2
