// The same network with its hosts in other places of the list: the Planner expects the same time.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "fabric/fabric.h"
#include "plan/choose/planner.h"
#include "planning.h"

namespace q7x2 {
namespace {

using test::add_slow;
using test::in_racks;
using test::kGigabit;
using test::kKiB;
using test::kMegabit;
using test::kMiB;
using test::switched;

/// Searches are bounded, and the last ties are broken by the place in the list.
constexpr double kBar = 1.4;

/// `fabric` with host i at place `place[i]`, and its ranks with it.
Fabric relabelled(const Fabric& fabric, const std::vector<int>& place) {
  Fabric other = fabric;
  for (size_t host = 0; host < place.size(); ++host) {
    other.hosts[static_cast<size_t>(place[host])] = fabric.hosts[host];
  }
  for (Fabric::Pair& pair : other.pairs) {
    pair.from = place[static_cast<size_t>(pair.from)];
    pair.to = place[static_cast<size_t>(pair.to)];
  }
  for (Fabric::Link& link : other.links) {
    link.a = place[static_cast<size_t>(link.a)];
    link.b = place[static_cast<size_t>(link.b)];
  }
  return other;
}

struct Network {
  std::string name;
  Fabric fabric;
};

/// A rack's rates, in Mbit/s, and its latency, in milliseconds.
struct Cable {
  double up, down, alpha;
};

/// Networks of which one order of the hosts once had a Plan that took up to ten times as long as
/// that of another one. `nics`: rates, in Mbit/s. `link`, `slow`: a pair of hosts with a private
/// link, and one with a tenth of the others' rate; empty: none.
struct Uneven {
  std::vector<Cable> racks;
  std::vector<int> rack_of;
  std::vector<int> nics;
  std::vector<int> link;
  std::vector<int> slow;
};

std::vector<Uneven> uneven() {
  const std::vector<int> equal(8, 1000);
  return {
      {{{100, 20, 0}, {20, 100, 20}, {100, 100, 1}}, {0, 1, 2, 1, 0, 0, 0, 1}, equal, {}, {}},
      {{{100, 400, 20}, {400, 100, 0}}, {0, 1, 1, 0, 1, 1, 1, 1}, equal, {3, 2}, {5, 0}},
      {{{100, 400, 0}, {400, 100, 20}},
       {0, 1, 1, 0, 0, 0, 0, 0},
       {1000, 1000, 1000, 500, 1000, 1000, 100, 1000},
       {4, 1},
       {0, 4}},
      {{{100, 100, 1}, {400, 400, 20}, {100, 400, 1}}, {0, 1, 2, 1, 0}, equal, {}, {}},
      {{{20, 100, 1}, {400, 20, 1}},
       {0, 1, 1, 1, 1, 1, 1},
       {1000, 500, 1000, 1000, 1000, 1000, 1000},
       {0, 2},
       {}},
      {{{100, 100, 20}, {100, 400, 0}},
       {0, 1, 1, 0, 0, 0, 0, 1},
       {1000, 1000, 1000, 1000, 1000, 1000, 1000, 100},
       {},
       {5, 2}},
      {{{20, 100, 1}, {400, 400, 20}, {20, 100, 20}}, {0, 1, 2, 1, 1, 2, 1}, equal, {}, {6, 1}},
      {{{100, 20, 20}, {20, 20, 0}}, {0, 1, 0, 0, 1, 0}, equal, {4, 3}, {}},
      {{{20, 400, 1}, {20, 20, 0}, {400, 100, 1}},
       {0, 1, 2, 1},
       {1000, 1000, 1000, 100},
       {},
       {0, 2}},
      {{{400, 400, 20}, {100, 100, 0}, {100, 400, 1}},
       {0, 1, 2, 2, 2, 2, 0},
       {500, 100, 1000, 1000, 1000, 1000, 1000},
       {0, 2},
       {}},
      {{{100, 100, 1}, {400, 100, 0}, {100, 400, 20}},
       {0, 1, 2, 2, 1, 0, 2},
       {1000, 1000, 100, 1000, 1000, 100, 1000},
       {2, 1},
       {}},
  };
}

Fabric fabric_of(const Uneven& network) {
  Fabric fabric = in_racks(network.rack_of, kGigabit, kGigabit);
  for (size_t rack = 0; rack < network.racks.size(); ++rack) {
    const Cable& cable = network.racks[rack];
    fabric.racks[rack] = {"", cable.up * kMegabit, cable.down * kMegabit, cable.alpha * 1e-3};
  }
  for (size_t host = 0; host < fabric.hosts.size(); ++host) {
    fabric.hosts[host].egress = fabric.hosts[host].ingress = network.nics[host] * kMegabit;
  }
  if (!network.link.empty()) {
    fabric.links.push_back({network.link[0], network.link[1], kGigabit, 50e-6});
  }
  if (!network.slow.empty()) add_slow(fabric, network.slow[0], network.slow[1], kGigabit / 10);
  return fabric;
}

std::vector<Network> networks() {
  std::vector<Network> all;
  const auto add_link = [](Fabric fabric, int a, int b, double rate) {
    fabric.links.push_back({a, b, rate, 50e-6});
    return fabric;
  };
  const Fabric two = in_racks({0, 0, 1, 1}, kGigabit, 100 * kMegabit, 1e-3);
  all.push_back({"two sites", two});
  all.push_back({"two sites with a private link", add_link(two, 1, 3, kGigabit)});
  const Fabric six = in_racks({0, 0, 0, 1, 1, 1}, kGigabit, 20 * kMegabit, 5e-3);
  all.push_back({"two sites of three with a private link", add_link(six, 2, 4, kGigabit)});
  const Fabric far = in_racks({0, 0, 0, 1, 1, 1}, kGigabit, 20 * kMegabit, 50e-3);
  all.push_back({"far sites of three with a private link", add_link(far, 1, 4, kGigabit)});
  all.push_back({"far sites with two private links",
                 add_link(add_link(far, 1, 4, kGigabit), 2, 3, kGigabit)});
  const Fabric three = in_racks({0, 0, 1, 1, 2, 2}, kGigabit, 50 * kMegabit, 2e-3);
  all.push_back({"three sites with two private links",
                 add_link(add_link(three, 1, 2, kGigabit), 3, 5, kGigabit)});
  Fabric slow = switched(5, 200 * kMegabit);
  add_slow(slow, 0, 1, 20 * kMegabit);
  all.push_back({"slow pair", slow});
  Fabric unequal = switched(5, kGigabit);
  unequal.hosts[1].egress = unequal.hosts[1].ingress = 100 * kMegabit;
  unequal.hosts[3].egress = unequal.hosts[3].ingress = 500 * kMegabit;
  all.push_back({"unequal NICs", unequal});
  for (const Uneven& network : uneven()) {
    all.push_back({"uneven network " + std::to_string(all.size()), fabric_of(network)});
  }
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](int limit) {
      return static_cast<int>(random() % static_cast<uint64_t>(limit));
    };
    const int hosts = 4 + below(3);
    std::vector<int> site_of;
    for (int host = 0; host < hosts; ++host) site_of.push_back(host < 2 ? host : below(2));
    Fabric fabric = in_racks(site_of, kGigabit, (20 + below(400)) * kMegabit, below(10) * 1e-3);
    const int a = below(hosts);
    const int b = (a + 1 + below(hosts - 1)) % hosts;
    all.push_back({"random network " + std::to_string(seed), add_link(fabric, a, b, kGigabit)});
  }
  return all;
}

class RelabelledHosts : public testing::TestWithParam<size_t> {};

TEST_P(RelabelledHosts, TakeAsLong) {
  const Network network = networks()[GetParam()];
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kBroadcast, Collective::kAllGather}) {
    for (const size_t bytes : {kKiB, 256 * kKiB, 4 * kMiB}) {
      std::vector<int> place(network.fabric.hosts.size());
      std::iota(place.begin(), place.end(), 0);
      std::mt19937_64 random(7);
      double least = 0;
      double most = 0;
      std::string fastest;
      std::string slowest;
      for (int i = 0; i < 24; ++i) {
        const int root = is_rooted(collective) ? place[0] : -1;
        Planner planner(0, std::make_shared<const Fabric>(relabelled(network.fabric, place)), "");
        const Proposal choice = planner.propose({collective, bytes, root}, 1).front();
        std::string text = choice.algorithm + " of";
        for (const int each : place) text += " " + std::to_string(each);
        if (i == 0 || choice.seconds < least) {
          least = choice.seconds;
          fastest = text;
        }
        if (choice.seconds > most) {
          most = choice.seconds;
          slowest = text;
        }
        std::ranges::shuffle(place, random);
      }
      EXPECT_LE(most, kBar * least) << network.name << ": " << to_string(collective) << " of "
                                    << bytes << " bytes: " << fastest << " " << least * 1e3
                                    << " ms, " << slowest << " " << most * 1e3 << " ms";
    }
  }
}

std::string name_of(const testing::TestParamInfo<size_t>& info) {
  std::string name = networks()[info.param].name;
  std::ranges::replace(name, ' ', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Networks, RelabelledHosts, testing::Range(size_t{0}, networks().size()),
                         name_of);

}  // namespace
}  // namespace q7x2
