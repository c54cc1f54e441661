// Which links and processors have changed, from noisy rates.
#include "ledger/rate_watch.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "ledger/link_meter.h"
#include "ledger/reduction_meter.h"
#include "ledger/turn_meter.h"

namespace q7x2 {
namespace {

constexpr int kAny = kAnyHost;
constexpr int64_t kPause = 30'000;

using Routes = std::vector<std::pair<int, int>>;

Routes ring(int hosts) {
  Routes routes;
  for (int host = 0; host < hosts; ++host) routes.emplace_back(host, (host + 1) % hosts);
  return routes;
}

Routes all_pairs(int hosts) {
  Routes routes;
  for (int from = 0; from < hosts; ++from) {
    for (int to = 0; to < hosts; ++to) {
      if (from != to) routes.emplace_back(from, to);
    }
  }
  return routes;
}

/// Hosts whose links and processors have factors, and rates that spread. There are two looks per
/// second.
class Network {
 public:
  Network(int hosts, Routes routes, double spread, uint64_t seed)
      : watch(hosts), hosts_(hosts), routes_(std::move(routes)), noise_(0, spread), random_(seed) {}

  /// True: something has changed.
  bool look() {
    now += 500;
    const RateWatch::Layout layout{hosts_};
    std::vector<RateWatch::Work> work(layout.size());
    for (const auto& [from, to] : routes_) {
      double rate = 100e3 * machine;
      for (const auto& [link, factor] : factors) {
        if ((link.first == from || link.first == kAny) &&
            (link.second == to || link.second == kAny))
          rate *= factor;
      }
      rate *= std::exp(noise_(random_));
      work[layout.sent(from, to)] = {10'000, static_cast<int32_t>(10'000e6 / rate)};
    }
    for (int host = 0; host < hosts_; ++host) {
      work[layout.reduced(host)] = reduced(host);
      work[layout.turns(host)] = turns(host);
    }
    return watch.look(1, now, kPause, work);
  }
  /// How many looks it takes to find a change; `most` and one more: it is not found.
  int looks_until_change(int most) {
    int looks = 1;
    while (looks <= most && !look()) ++looks;
    return looks;
  }
  void set_host(int host, double factor) {
    factors[{host, kAny}] = factor;
    factors[{kAny, host}] = factor;
  }

  RateWatch watch;
  std::map<std::pair<int, int>, double> factors;
  std::map<int, double> speeds;  // of processors that run
  std::map<int, double> shares;  // of the time in which a processor runs, if it could
  std::set<int> idle;            // hosts that add nothing up
  double stop = 0;               // seconds for which a process waits for its next turn
  double machine = 1;
  int64_t now = 0;

 private:
  static double of(const std::map<int, double>& some, int host) {
    const auto found = some.find(host);
    return found == some.end() ? 1 : found->second;
  }
  int32_t noisy(double seconds) {
    return static_cast<int32_t>(1e6 * seconds * std::exp(noise_(random_)));
  }
  /// For how long a thread waits that wants to run for so long.
  double waits(int host, double seconds) {
    const double share = of(shares, host);
    if (stop == 0 || share == 1) return seconds * (1 / share - 1);
    std::poisson_distribution<int> stops(seconds * (1 / share - 1) / stop);
    return stop * stops(random_);
  }
  /// 200 MB at 10 GB/s, if nothing is slow.
  RateWatch::Work reduced(int host) {
    if (idle.contains(host)) return {};
    const double seconds = 0.02 / machine / of(speeds, host);
    return {200'000, noisy(seconds + waits(host, seconds))};
  }
  RateWatch::Work turns(int host) {
    constexpr double kSeconds = 0.2;
    const double ready = kSeconds / machine + waits(host, kSeconds);
    return {static_cast<int32_t>(1e6 * kSeconds), noisy(ready)};
  }

  const int hosts_;
  const Routes routes_;
  std::normal_distribution<double> noise_;
  std::mt19937_64 random_;
};

TEST(RateWatch, NoiseChangesNothing) {
  for (const uint64_t seed : {1, 2, 3, 4}) {
    for (const double spread : {0.02, 0.1, 0.2}) {
      Network network(8, seed % 2 == 0 ? ring(8) : all_pairs(8), spread, seed);
      EXPECT_GT(network.looks_until_change(1200), 1200) << "seed " << seed << ", " << spread;
    }
  }
}

TEST(RateWatch, ASlowHostIsFoundAndItsRecoveryToo) {
  for (const int hosts : {3, 4, 8}) {
    for (const Routes& routes : {ring(hosts), all_pairs(hosts)}) {
      SCOPED_TRACE(std::to_string(hosts) + " hosts, routes " + std::to_string(routes.size()));
      Network network(hosts, routes, 0.05, 7);
      EXPECT_GT(network.looks_until_change(30), 30);
      network.set_host(1, 0.2);
      EXPECT_LE(network.looks_until_change(10), 4);
      ASSERT_EQ(network.watch.factors().size(), 2U) << "it sends and receives slowly";
      EXPECT_NEAR(static_cast<double>(network.watch.factors().at({1, kAny})), 200, 40);
      EXPECT_NEAR(static_cast<double>(network.watch.factors().at({kAny, 1})), 200, 40);
      EXPECT_GT(network.looks_until_change(100), 100) << "that is how it is now";
      network.set_host(1, 1);
      EXPECT_LE(network.looks_until_change(10), 4);
      EXPECT_TRUE(network.watch.factors().empty());
    }
  }
}

// Others had its share of their links. It may not get all of it back at once.
TEST(RateWatch, WhatSharesALinkWithAHostThatRecoversIsNotSlow) {
  Network network(8, all_pairs(8), 0.05, 7);
  network.looks_until_change(20);
  network.set_host(1, 0.2);
  EXPECT_LE(network.looks_until_change(10), 4);
  EXPECT_GT(network.looks_until_change(70), 70);
  network.set_host(1, 0.75);
  network.factors[{3, 5}] = 0.3;
  network.factors[{4, 7}] = 0.3;
  EXPECT_LE(network.looks_until_change(10), 4);
  EXPECT_TRUE(network.watch.factors().empty());
  EXPECT_GT(network.looks_until_change(100), 100);
}

TEST(RateWatch, OneWayOfAHostIsFound) {
  Network network(4, all_pairs(4), 0.05, 3);
  network.looks_until_change(20);
  network.factors[{2, kAny}] = 0.3;
  EXPECT_LE(network.looks_until_change(10), 4);
  ASSERT_EQ(network.watch.factors().size(), 1U);
  EXPECT_TRUE(network.watch.factors().contains({2, kAny}));
}

TEST(RateWatch, ARouteIsFound) {
  Network network(4, all_pairs(4), 0.05, 3);
  network.looks_until_change(20);
  network.factors[{2, 1}] = 0.3;
  EXPECT_LE(network.looks_until_change(10), 4);
  ASSERT_EQ(network.watch.factors().size(), 1U);
  EXPECT_TRUE(network.watch.factors().contains({2, 1}));
}

TEST(RateWatch, ASlowMachineIsNoSlowLinkOrHost) {
  Network network(4, all_pairs(4), 0.05, 3);
  network.looks_until_change(20);
  network.machine = 0.2;
  EXPECT_GT(network.looks_until_change(50), 50);
  network.machine = 1;
  EXPECT_GT(network.looks_until_change(50), 50);
}

TEST(RateWatch, OneBadLookChangesNothing) {
  Network network(4, all_pairs(4), 0.05, 3);
  network.looks_until_change(20);
  for (int i = 0; i < 10; ++i) {
    network.set_host(1, 0.2);
    EXPECT_GT(network.looks_until_change(2), 2);
    network.set_host(1, 1);
    EXPECT_GT(network.looks_until_change(2), 2);
  }
}

/// Disturbs one of four hosts again and again. `disturb`: before each of 1,000 looks.
void expect_changes_at_a_distance(const std::function<void(Network&, int look)>& disturb) {
  Network network(4, all_pairs(4), 0.05, 3);
  int64_t last = -kPause;
  int changes = 0;
  for (int i = 0; i < 1000; ++i) {
    disturb(network, i);
    if (!network.look()) continue;
    EXPECT_GE(network.now - last, kPause);
    last = network.now;
    ++changes;
  }
  EXPECT_GE(changes, 2);
}

TEST(RateWatch, ChangesOfLinksKeepTheirDistance) {
  expect_changes_at_a_distance(
      [](Network& network, int look) { network.set_host(1, look / 15 % 2 == 0 ? 1 : 0.2); });
}

TEST(RateWatch, ASlowProcessorIsFoundAndItsRecoveryToo) {
  for (const int hosts : {3, 4, 8}) {
    for (const double speed : {0.05, 0.25, 0.5}) {
      SCOPED_TRACE(std::to_string(hosts) + " hosts, speed " + std::to_string(speed));
      Network network(hosts, ring(hosts), 0.05, 7);
      EXPECT_GT(network.looks_until_change(30), 30);
      network.speeds[1] = speed;
      const int looks = network.looks_until_change(10);
      EXPECT_GE(looks, 5) << "three times in a row, for a second each time";
      EXPECT_LE(looks, 8);
      ASSERT_EQ(network.watch.factors().size(), 1U);
      EXPECT_NEAR(static_cast<double>(network.watch.factors().at({1, 1})), 1000 * speed,
                  200 * speed);
      EXPECT_GT(network.looks_until_change(100), 100) << "that is how it is now";
      network.speeds[1] = 1;
      EXPECT_LE(network.looks_until_change(10), 8);
      EXPECT_TRUE(network.watch.factors().empty());
      EXPECT_TRUE(network.watch.forgotten().empty());
    }
  }
}

// Reductions take turns with other processes, too: the two do not count twice.
TEST(RateWatch, AProcessorThatRunsLessOftenIsFoundAndItsRecoveryToo) {
  for (const double share : {0.05, 0.25, 0.5}) {
    SCOPED_TRACE(share);
    Network network(4, ring(4), 0.05, 7);
    EXPECT_GT(network.looks_until_change(30), 30);
    network.shares[1] = share;
    EXPECT_LE(network.looks_until_change(10), 8);
    ASSERT_EQ(network.watch.factors().size(), 1U);
    EXPECT_NEAR(static_cast<double>(network.watch.factors().at({1, 1})), 1000 * share, 200 * share);
    EXPECT_GT(network.looks_until_change(100), 100) << "that is how it is now";
    network.shares[1] = 1;
    EXPECT_LE(network.looks_until_change(10), 8);
    EXPECT_TRUE(network.watch.factors().empty());
  }
}

// A quota lets a process run at full speed, and then stops it. Few stops meet a reduction.
TEST(RateWatch, AProcessorThatIsStoppedNowAndThenIsFound) {
  for (const uint64_t seed : {1, 2, 3, 4}) {
    Network network(8, all_pairs(8), 0.05, seed);
    network.stop = 0.075;
    network.looks_until_change(30);
    network.shares[5] = 0.25;
    EXPECT_LE(network.looks_until_change(20), 20) << "seed " << seed;
    ASSERT_EQ(network.watch.factors().size(), 1U);
    EXPECT_NEAR(static_cast<double>(network.watch.factors().at({5, 5})), 250, 150);
  }
}

TEST(RateWatch, ASlowLinkAndASlowProcessorAreFoundAtOnce) {
  Network network(4, all_pairs(4), 0.05, 3);
  network.looks_until_change(30);
  network.set_host(1, 0.2);
  network.speeds[2] = 0.25;
  EXPECT_LE(network.looks_until_change(10), 4) << "a link is looked at more often";
  EXPECT_LE(network.looks_until_change(70), 61) << "a pause lies between two changes";
  ASSERT_EQ(network.watch.factors().size(), 3U);
  EXPECT_NEAR(static_cast<double>(network.watch.factors().at({2, 2})), 250, 50);
  EXPECT_TRUE(network.watch.factors().contains({1, kAny}));
}

TEST(RateWatch, ChangesOfProcessorsKeepTheirDistance) {
  expect_changes_at_a_distance(
      [](Network& network, int look) { network.speeds[1] = look / 25 % 2 == 0 ? 1 : 0.2; });
}

// Its Plan may leave it nothing to add up.
TEST(RateWatch, AProcessorThatAddsNothingUpCountsAsRecoveredUntilItIsFoundAgain) {
  Network network(4, all_pairs(4), 0.05, 3);
  network.looks_until_change(30);
  network.speeds[1] = 0.2;
  EXPECT_LE(network.looks_until_change(10), 8);
  network.idle = {1};
  const int64_t since = network.now;
  EXPECT_LE(network.looks_until_change(1300), 1210);
  EXPECT_GE(network.now - since, 600'000);
  EXPECT_TRUE(network.watch.factors().empty());
  EXPECT_EQ(network.watch.forgotten(), std::set{1});
  network.idle.clear();
  EXPECT_LE(network.looks_until_change(70), 61);
  EXPECT_NEAR(static_cast<double>(network.watch.factors().at({1, 1})), 200, 40);
}

TEST(RateWatch, LittleWorkSaysNothingOfAProcessor) {
  RateWatch watch(3);
  const RateWatch::Layout layout{3};
  std::vector<RateWatch::Work> work(layout.size());
  for (int i = 0; i < 200; ++i) {
    for (int host = 0; host < 3; ++host) {
      work[layout.reduced(host)] = {10, i > 100 && host == 1 ? 100 : 1};
    }
    EXPECT_FALSE(watch.look(1, i * 500, kPause, work));
  }
}

TEST(ReductionMeter, TellsWhatWasAddedUpSinceTheLastTime) {
  ReductionMeter meter;
  meter.add(2, 100, 7);
  meter.add(7, 10, 1);
  const ReductionMeter::Done done = meter.take();
  EXPECT_EQ(done.bytes, 380U) << "operands are read, and the sum is written";
  EXPECT_EQ(done.nanoseconds, 8);
  EXPECT_EQ(meter.take().bytes, 0U);
}

TEST(TurnMeter, TellsHowOftenAThreadRanSinceItWasLastAsked) {
  TurnMeter meter;
  EXPECT_EQ(meter.take(ThreadTurns{1, 100, 10}).ran, 0) << "whatever was before the first look";
  EXPECT_EQ(meter.take(ThreadTurns{2, 50, 5}).ran, 0);
  const TurnMeter::Turns turns = meter.take(ThreadTurns{1, 130, 17});
  EXPECT_EQ(turns.ran, 30);
  EXPECT_EQ(turns.waited, 7);
  EXPECT_EQ(meter.take(ThreadTurns{2, 1, 0}).ran, 0) << "another thread of the same number";
  EXPECT_EQ(meter.take(std::nullopt).ran, 0);
}

TEST(LinkMeter, TellsWhatWasSentSinceTheLastTime) {
  LinkMeter meter;
  std::vector<ConnectionTotals> totals{{.peer = 7, .local_port = 1, .acknowledged = 100, .busy = 9},
                                       {.peer = 7, .local_port = 2, .acknowledged = 50, .busy = 1}};
  EXPECT_EQ(meter.take(totals).at(7).bytes, 150U);
  totals[0].acknowledged += 30;
  totals[0].busy += 4;
  totals[1].acknowledged = 20;  // another connection
  const auto sent = meter.take(totals);
  EXPECT_EQ(sent.at(7).bytes, 50U);
  EXPECT_EQ(sent.at(7).busy, 5U);
}

}  // namespace
}  // namespace q7x2
