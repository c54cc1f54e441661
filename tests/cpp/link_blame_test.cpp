// Which routes, hosts, cables and private links have changed, and what is slow from the beginning.
#include "ledger/link_blame.h"

#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "watched_network.h"

namespace q7x2 {
namespace {

using test::all_pairs;
using test::kAny;
using test::Network;
using test::one_rack;
using test::ring;
using test::Routes;

/// Two racks of two hosts.
Wiring two_racks() {
  return {.rack_of = {0, 0, 1, 1}, .linked = {}, .promised = {}};
}

/// All routes between the first and the second half of the hosts, a cable that nobody knows.
std::set<RatedResource> between_halves(int hosts) {
  std::set<RatedResource> routes;
  for (const auto& [from, to] : all_pairs(hosts)) {
    if ((from < hosts / 2) != (to < hosts / 2)) routes.insert({from, to});
  }
  return routes;
}

/// Four hosts; 0 and 1 have a private link, and so have 2 and 3.
Wiring two_links() {
  Wiring wiring = one_rack(4);
  wiring.linked = {{0, 1}, {1, 0}, {2, 3}, {3, 2}};
  return wiring;
}

using Kind = RatedResource::Kind;
using Slow = std::set<RatedResource>;

Slow found_slow(const Network& network) {
  Slow slow;
  for (const auto& [of, factor] : network.watch.factors()) slow.insert(of);
  return slow;
}

// Whatever changes, by whatever factor: it is found, and nothing else is.
TEST(LinkBlame, ExactlyWhatHasChangedIsFoundAndItsRecoveryToo) {
  struct Case {
    const char* what;
    Wiring wiring;
    Routes routes;
    Slow changes;
    bool is_one_route = false;  // which nothing else confirms
  };
  const std::vector<Case> cases{
      {"a route", one_rack(4), all_pairs(4), {{2, 1}}, true},
      {"a route between racks", two_racks(), all_pairs(4), {{2, 1}}, true},
      {"a host's way out", one_rack(4), all_pairs(4), {{2, kAny}}},
      {"a host", one_rack(4), ring(4), {{1, kAny}, {kAny, 1}}},
      {"a host in a rack", two_racks(), ring(4), {{1, kAny}, {kAny, 1}}},
      {"a host in a rack, all pairs", two_racks(), all_pairs(4), {{3, kAny}, {kAny, 3}}},
      {"a cable", two_racks(), all_pairs(4), {{0, kAny, Kind::kCable}, {kAny, 0, Kind::kCable}}},
      {"a cable, a ring", two_racks(), ring(4), {{0, kAny, Kind::kCable}, {kAny, 0, Kind::kCable}}},
      {"a cable's way up", two_racks(), all_pairs(4), {{0, kAny, Kind::kCable}}},
      {"a cable of four",
       {.rack_of = {0, 0, 1, 1, 2, 2, 3, 3}, .linked = {}, .promised = {}},
       all_pairs(8),
       {{2, kAny, Kind::kCable}, {kAny, 2, Kind::kCable}}},
      {"an unknown cable", one_rack(4), all_pairs(4), between_halves(4), true},
      {"an unknown cable, a ring", one_rack(4), ring(4), between_halves(4), true},
      {"an unknown cable, a long ring", one_rack(8), ring(8), between_halves(8), true},
      {"a private link", two_links(), ring(4), {{0, 1, Kind::kLink}}},
      {"a private link, both ways",
       two_links(),
       all_pairs(4),
       {{0, 1, Kind::kLink}, {1, 0, Kind::kLink}}},
      {"a host rails its private link", two_links(), all_pairs(4), {{1, kAny}, {kAny, 1}}},
  };
  for (const Case& each : cases) {
    for (const double factor : {0.05, 0.2, 0.5}) {
      for (const uint64_t seed : {1, 2, 3}) {
        SCOPED_TRACE(std::string(each.what) + " at " + std::to_string(factor));
        Network network(static_cast<int>(each.wiring.rack_of.size()), each.routes, 0.05, seed,
                        each.wiring);
        EXPECT_GT(network.samples_until_change(30), 30);
        for (const RatedResource& of : each.changes) network.factors[of] = factor;
        const int samples = each.is_one_route ? 7 : 4;
        EXPECT_LE(network.samples_until_change(10), samples);
        EXPECT_EQ(found_slow(network), each.changes);
        for (const auto& [of, found] : network.watch.factors()) {
          EXPECT_NEAR(static_cast<double>(found), 1000 * factor, 200 * factor);
        }
        EXPECT_GT(network.samples_until_change(70), 70) << "that is how it is now";
        network.factors.clear();
        EXPECT_LE(network.samples_until_change(10), samples);
        EXPECT_TRUE(network.watch.factors().empty());
      }
    }
  }
}

// A half would not leave the bands of rates that spread so much.
TEST(LinkBlame, AnUnknownCableIsFoundInNoise) {
  const auto first = static_cast<uint64_t>(std::random_device()());
  for (uint64_t seed = first; seed < first + 20; ++seed) {
    for (const double factor : {0.33, 0.25, 0.2}) {
      SCOPED_TRACE("at " + std::to_string(factor) + ", seed " + std::to_string(seed));
      Network network(8, seed % 2 == 0 ? ring(8) : all_pairs(8), 0.09, seed);
      EXPECT_GT(network.samples_until_change(30), 30);
      for (const RatedResource& of : between_halves(8)) network.factors[of] = factor;
      EXPECT_LE(network.samples_until_change(40), 40);
      EXPECT_EQ(found_slow(network), between_halves(8));
    }
  }
}

// All rates fall by one factor, as on a machine that has become slow. But other routes may be as
// fast as before.
TEST(LinkBlame, ACableThatAllRoutesInUseCrossIsFound) {
  const Routes across{{0, 2}, {2, 1}, {1, 3}, {3, 0}};
  for (const uint64_t seed : {1, 2, 3, 4}) {
    Network network(4, across, 0.05, seed);
    EXPECT_GT(network.samples_until_change(30), 30);
    for (const RatedResource& of : between_halves(4)) network.factors[of] = 0.1;
    EXPECT_LE(network.samples_until_change(10), 7);
    EXPECT_EQ(found_slow(network), between_halves(4));
  }
  Network half(4, across, 0.05, 1);
  EXPECT_GT(half.samples_until_change(30), 30);
  half.machine = 0.5;
  EXPECT_GT(half.samples_until_change(50), 50) << "other work on the machine";
}

// Calls of some seconds: three of them would take too long.
TEST(LinkBlame, ALookAfterSecondsOfTrafficIsEnough) {
  Network network(4, ring(4), 0.05, 3, two_links());
  network.samples_until_change(30);
  network.kilobytes = 60'000;
  network.factors[{0, 1, Kind::kLink}] = 0.2;
  network.between_samples = 3000;
  EXPECT_EQ(network.samples_until_change(10), 1);
  EXPECT_EQ(found_slow(network), (Slow{{0, 1, Kind::kLink}}));
}

/// Each route is promised as much.
Wiring promising(Wiring wiring) {
  wiring.promised.assign(wiring.rack_of.size() * wiring.rack_of.size(), 100'000);
  return wiring;
}

// The Fabric was measured a week ago. Others share NICs with each other, and keep less than their
// promise, too.
TEST(LinkBlame, AHostThatIsSlowFromTheFirstCallOnIsFound) {
  for (const double factor : {0.05, 0.15}) {
    for (const double others : {1.0, 0.3}) {
      for (const uint64_t seed : {1, 2, 3}) {
        Network network(4, seed % 2 == 0 ? ring(4) : all_pairs(4), 0.05, seed,
                        promising(one_rack(4)));
        network.machine = others;
        network.set_host(2, factor);
        network.pattern = seed == 3 ? 0 : 1;  // choices take turns in the first calls, or do not
        EXPECT_LE(network.samples_until_change(10), 3);
        EXPECT_EQ(found_slow(network), (Slow{{2, kAny}, {kAny, 2}}));
        EXPECT_NEAR(static_cast<double>(network.watch.factors().at({2, kAny})), 1000 * factor,
                    250 * factor);
        Wiring known = network.watch.wiring();
        for (size_t route = 0; route < known.promised.size(); ++route) {
          if (route / 4 == 2 || route % 4 == 2)
            known.promised[route] = static_cast<int64_t>(100'000 * factor);
        }
        network.watch.rewire(known);
        network.pattern = 1;
        EXPECT_GT(network.samples_until_change(70), 70) << "that is how it is now";
        network.set_host(2, 1);
        EXPECT_LE(network.samples_until_change(10), 4);
        EXPECT_TRUE(network.watch.factors().empty());
      }
    }
  }
}

// They fit into the buckets of a shaped link, so their rate is that of a busy processor.
TEST(LinkBlame, BurstsAreNotSlowerThanBefore) {
  for (const uint64_t seed : {1, 2, 3}) {
    Network network(4, all_pairs(4), 0.05, seed, promising(one_rack(4)));
    network.factors[{3, 1}] = 40;
    network.samples_until_change(30);
    network.factors[{3, 1}] = 4;
    EXPECT_GT(network.samples_until_change(100), 100);
    network.factors[{3, 1}] = 0.3;
    EXPECT_LE(network.samples_until_change(10), 7);
    EXPECT_EQ(found_slow(network), (Slow{{3, 1}}));
  }
}

// Their Plan has them share a NIC: three send to one, or one has a factor that is no tenth.
TEST(LinkBlame, RoutesThatShareANicBreakNoPromise) {
  for (const uint64_t seed : {1, 2, 3}) {
    Network star(8, {{0, 1}, {0, 2}, {0, 3}, {1, 0}, {2, 0}, {3, 0}, {4, 5}, {5, 6}, {6, 7}}, 0.1,
                 seed, promising(one_rack(8)));
    star.factors[{0, kAny}] = 1 / 3.0;
    star.factors[{kAny, 0}] = 1 / 3.0;
    star.factors[{0, 1}] = 0.5;
    EXPECT_GT(star.samples_until_change(100), 100);
    Network half(4, all_pairs(4), 0.1, seed, promising(one_rack(4)));
    half.set_host(1, 0.5);
    EXPECT_GT(half.samples_until_change(100), 100);
  }
}

// Its Plan may avoid it, so nobody sees that it recovers.
TEST(LinkBlame, ALinkWithoutTrafficCountsAsRecoveredUntilItIsFoundAgain) {
  const RatedResource link{0, 1, Kind::kLink};
  for (const bool recovers : {false, true}) {
    Network network(4, ring(4), 0.05, 3, two_links());
    network.samples_until_change(30);
    network.factors[link] = 0.1;
    EXPECT_LE(network.samples_until_change(10), 4);
    network.carries_nothing = {{0, 1}};
    const int64_t since = network.now;
    EXPECT_LE(network.samples_until_change(1300), 1210);
    EXPECT_GE(network.now - since, 600'000);
    EXPECT_TRUE(network.watch.factors().empty());
    EXPECT_EQ(network.watch.forgotten(), Slow{link});
    network.carries_nothing.clear();
    if (recovers) network.factors.clear();
    const int samples = network.samples_until_change(100);
    EXPECT_EQ(samples > 100, recovers);
    EXPECT_EQ(found_slow(network), recovers ? Slow{} : Slow{link});
  }
}

}  // namespace
}  // namespace q7x2
