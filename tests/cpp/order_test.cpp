// Orders: who stands beside whom, on networks whose pairs of hosts differ.
#include "plan/algorithms/order.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "fabric/fabric.h"
#include "plan/algorithms/generators.h"
#include "plan/algorithms/host_tour.h"
#include "plan/cost/host_distances.h"
#include "random_fabric.h"

namespace q7x2 {
namespace {

constexpr double kRate = 25e6;

ScheduleRequest request_on(const Fabric& fabric, int root = -1) {
  return {root < 0 ? Collective::kAllReduce : Collective::kBroadcast, fabric.world_size(), root,
          &fabric};
}

void add_slow(Fabric& fabric, int a, int b) {
  fabric.pairs.push_back({.from = a, .to = b, .solo = kRate / 10});
  fabric.pairs.push_back({.from = b, .to = a, .solo = kRate / 10});
}

void add_far(Fabric& fabric, int a, int b) {
  fabric.pairs.push_back({.from = a, .to = b, .alpha = 10e-3});
  fabric.pairs.push_back({.from = b, .to = a, .alpha = 10e-3});
}

/// Hops of a row, each as its two hosts, the lower one first.
std::set<std::pair<int, int>> hops(const Fabric& fabric, const Order& order, bool closed) {
  std::set<std::pair<int, int>> hops;
  for (int i = closed ? 0 : 1; i < order.size(); ++i) {
    const auto host = [&](int at) {
      return fabric.host_of[static_cast<size_t>(order.at((at + order.size()) % order.size()))];
    };
    if (host(i) != host(i - 1)) hops.insert(std::minmax(host(i), host(i - 1)));
  }
  return hops;
}

bool is_permutation_of_ranks(const Order& order, int ranks) {
  std::vector<int> sorted = order.ranks();
  std::ranges::sort(sorted);
  std::vector<int> all(static_cast<size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  return sorted == all;
}

TEST(Order, ARingAvoidsASlowPair) {
  for (const int hosts : {4, 5, 8, 13}) {
    for (const int ranks : {1, 2, 3}) {
      for (int slow = 1; slow < hosts; ++slow) {
        Fabric fabric = Fabric::uniform(hosts, ranks, kRate);
        add_slow(fabric, 0, slow);
        const Order order = near_order(request_on(fabric));
        EXPECT_TRUE(is_permutation_of_ranks(order, hosts * ranks));
        EXPECT_FALSE(hops(fabric, order, true).contains({0, slow}));
        const auto path = hops(fabric, near_path(request_on(fabric)), false);
        EXPECT_FALSE(path.contains({0, slow}));
        EXPECT_EQ(path.size(), static_cast<size_t>(hosts - 1))
            << "the ranks of a host are together";
      }
    }
  }
}

TEST(Order, APathBeginsAtItsRoot) {
  for (int root = 0; root < 12; ++root) {
    Fabric fabric = Fabric::uniform(6, 2, kRate);
    add_slow(fabric, 0, 1);
    add_slow(fabric, 2, 3);
    const Order order = near_path_from(request_on(fabric, root), root);
    EXPECT_EQ(order.at(0), root);
    EXPECT_TRUE(is_permutation_of_ranks(order, 12));
    const auto path = hops(fabric, order, false);
    EXPECT_FALSE(path.contains({0, 1}) || path.contains({2, 3}));
  }
}

TEST(Order, EntersEachGroupOfNearHostsOnce) {
  const std::vector<int> site = {0, 1, 2, 0, 1, 2, 0, 1};
  Fabric fabric = Fabric::uniform(8, 1, kRate);
  for (int a = 0; a < 8; ++a) {
    for (int b = a + 1; b < 8; ++b) {
      if (site[static_cast<size_t>(a)] != site[static_cast<size_t>(b)]) add_far(fabric, a, b);
    }
  }
  int crossings = 0;
  for (const auto& [a, b] : hops(fabric, near_order(request_on(fabric)), true)) {
    crossings += site[static_cast<size_t>(a)] == site[static_cast<size_t>(b)] ? 0 : 1;
  }
  EXPECT_EQ(crossings, 3);
}

TEST(Order, FollowsPrivateLinks) {
  const std::vector<std::pair<int, int>> ring = {{0, 3}, {3, 1}, {1, 5}, {5, 2}, {2, 4}, {4, 0}};
  Fabric fabric = Fabric::uniform(6, 1, kRate);
  std::set<std::pair<int, int>> links;
  for (const auto& [a, b] : ring) {
    fabric.links.push_back({a, b, 4 * kRate, 30e-6});
    links.insert(std::minmax(a, b));
  }
  EXPECT_EQ(hops(fabric, near_order(request_on(fabric)), true), links);
}

TEST(Order, IsThatOfRacksAndHostsWhereNothingElseIsKnown) {
  Fabric fabric = Fabric::uniform(6, 2, kRate);
  fabric.racks = {{"", kRate, kRate}, {"", kRate, kRate}};
  for (size_t host = 0; host < 6; ++host) fabric.hosts[host].rack = static_cast<int>(host % 2);
  // As measured, and all alike.
  for (int a = 0; a < 6; ++a) {
    for (int b = 0; b < 6; ++b) {
      if (a != b) fabric.pairs.push_back({.from = a, .to = b, .alpha = 30e-6, .rate = kRate});
    }
  }
  const ScheduleRequest request = request_on(fabric);
  EXPECT_EQ(near_order(request).ranks(), fabric.near_order());
  EXPECT_EQ(near_path(request).ranks(), fabric.near_order());
  const std::vector<Talk> talks = {{0, 11}, {1, 10}, {2, 9}};
  EXPECT_EQ(arranged(request, near_order(request), talks).ranks(), fabric.near_order());
}

TEST(Order, ThoseThatTalkAreNear) {
  // Every two positions but one talk: that one is for the slow pair.
  for (int a = 0; a < 5; ++a) {
    for (int b = a + 1; b < 5; ++b) {
      Fabric fabric = Fabric::uniform(5, 2, kRate);
      add_slow(fabric, a, b);
      std::vector<Talk> talks;
      for (int i = 0; i < 10; ++i) {
        for (int j = i + 1; j < 10; ++j) {
          if (std::pair(i / 2, j / 2) != std::pair(1, 4)) talks.push_back({i, j});
        }
      }
      const ScheduleRequest request = request_on(fabric);
      const Order order = arranged(request, near_order(request), talks);
      EXPECT_TRUE(is_permutation_of_ranks(order, 10));
      const std::set<int> apart = {order.at(2) / 2, order.at(8) / 2};
      EXPECT_EQ(apart, (std::set<int>{a, b}));
    }
  }
}

TEST(Order, NoAlgorithmUsesASlowPairThatItCanAvoid) {
  Fabric fabric = Fabric::uniform(8, 1, kRate);
  add_slow(fabric, 2, 3);
  for (const Generator& generator : generators()) {
    const std::string& name = generator.name;
    const std::set<std::string> pairs_talk = {"ring",
                                              "recursive_doubling",
                                              "halving_doubling",
                                              "chain",
                                              "binomial_tree",
                                              "double_binary_tree",
                                              "ccube",
                                              "torus",
                                              "blink"};
    if (!pairs_talk.contains(name)) continue;
    ScheduleRequest request{generator.collective, 8, is_rooted(generator.collective) ? 1 : -1,
                            &fabric};
    for (const int parameter :
         generator.parameters == nullptr ? std::vector{0} : generator.parameters(request)) {
      request.parameter = parameter;
      const Schedule schedule = generator.generate(request);
      for (const Round& round : schedule.rounds()) {
        for (const Edge& edge : round.edges) {
          EXPECT_NE(std::minmax(edge.from, edge.to), std::minmax(2, 3))
              << generator.full_name(parameter) << ", " << to_string(generator.collective);
        }
      }
    }
  }
}

TEST(Order, IsAPermutationOnAnyFabric) {
  for (int ranks = 1; ranks <= 17; ++ranks) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      const Fabric fabric = random_fabric(ranks, seed);
      const ScheduleRequest request = request_on(fabric);
      EXPECT_TRUE(is_permutation_of_ranks(near_order(request), ranks));
      EXPECT_TRUE(is_permutation_of_ranks(near_path(request), ranks));
      for (const int root : {0, ranks / 2, ranks - 1}) {
        const Order order = near_path_from(request, root);
        EXPECT_TRUE(is_permutation_of_ranks(order, ranks));
        EXPECT_EQ(order.at(0), root);
      }
    }
  }
}

/// The length of the shortest tour.
double shortest(const HostDistances& distances, Tour kind) {
  std::vector<int> hosts(static_cast<size_t>(distances.hosts()));
  std::iota(hosts.begin(), hosts.end(), 0);
  double least = 1e9;
  do {
    if (kind == Tour::kFromFirst && hosts[0] != 0) break;
    double length = kind == Tour::kClosed ? distances.between(hosts.back(), hosts[0]) : 0;
    for (size_t i = 1; i < hosts.size(); ++i) length += distances.between(hosts[i - 1], hosts[i]);
    least = std::min(least, length);
  } while (std::next_permutation(hosts.begin(), hosts.end()));
  return least;
}

// Among seven hosts whose pairs are slow or far at random.
TEST(HostTour, IsTheShortestOneOfFewHosts) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Fabric fabric = Fabric::uniform(7, 1, kRate);
    uint64_t state = seed;
    for (int a = 0; a < 7; ++a) {
      for (int b = a + 1; b < 7; ++b) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        if (state >> 61 < 3) add_slow(fabric, a, b);
        if (state >> 61 == 3) add_far(fabric, a, b);
      }
    }
    const HostDistances distances(fabric);
    for (const Tour kind : {Tour::kClosed, Tour::kOpen, Tour::kFromFirst}) {
      std::vector<int> hosts(7);
      std::iota(hosts.begin(), hosts.end(), 0);
      const std::vector<int> tour = short_tour(distances, hosts, kind);
      EXPECT_TRUE(kind != Tour::kFromFirst || tour[0] == 0);
      double length = kind == Tour::kClosed ? distances.between(tour.back(), tour[0]) : 0;
      for (size_t i = 1; i < tour.size(); ++i) length += distances.between(tour[i - 1], tour[i]);
      EXPECT_LE(length, shortest(distances, kind) * (1 + 1e-6));
    }
  }
}

// A third of all pairs are slow, but a tour that is fast everywhere is hidden among them.
TEST(HostTour, FindsAFastTourOfManyHosts) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    constexpr int kHosts = 24;
    Fabric fabric = Fabric::uniform(kHosts, 1, kRate);
    uint64_t state = seed;
    for (int a = 0; a < kHosts; ++a) {
      for (int b = a + 1; b < kHosts; ++b) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        const int distance = (b - a) * 5 % kHosts;
        if (state >> 61 < 3 && distance != 1 && distance != kHosts - 1) add_slow(fabric, a, b);
      }
    }
    const HostDistances distances(fabric);
    std::vector<int> hosts(kHosts);
    std::iota(hosts.begin(), hosts.end(), 0);
    const std::vector<int> tour = short_tour(distances, hosts, Tour::kClosed);
    double longest = distances.between(tour.back(), tour[0]);
    for (size_t i = 1; i < tour.size(); ++i) {
      longest = std::max(longest, distances.between(tour[i - 1], tour[i]));
    }
    EXPECT_LT(longest, 0.1) << "a slow hop, seed " << seed;
  }
}

// Nothing here is timed: that it ends is the test.
TEST(HostTour, IsBoundedForThousandsOfHosts) {
  for (const int hosts : {1024, 4096}) {
    Fabric fabric = Fabric::uniform(hosts, 1, kRate);
    for (int host = 0; host < hosts; ++host) {
      for (int distance = 1; distance < hosts; distance *= 2) {
        const int other = (host + distance) % hosts;
        const bool is_slow = (host + distance) % 11 == 0;
        fabric.pairs.push_back(
            {.from = host, .to = other, .alpha = 30e-6, .solo = is_slow ? kRate / 10 : kRate});
      }
    }
    const ScheduleRequest request = request_on(fabric);
    const Order order = near_order(request);
    EXPECT_TRUE(is_permutation_of_ranks(order, hosts));
  }
}

}  // namespace
}  // namespace q7x2
