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

/// Searches are bounded, and break ties by the place in the list. The largest ratio of these
/// networks is 1.33.
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
