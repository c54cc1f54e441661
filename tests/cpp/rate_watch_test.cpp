// Which links and processors have changed, from noisy rates.
#include "ledger/rate_watch.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "ledger/link_meter.h"
#include "ledger/reduction_meter.h"
#include "ledger/turn_meter.h"
#include "watched_network.h"

namespace q7x2 {
namespace {

using test::all_pairs;
using test::kAny;
using test::kPause;
using test::Network;
using test::one_rack;
using test::ring;
using test::Routes;

TEST(RateWatch, NoiseChangesNothing) {
  for (const uint64_t seed : {1, 2, 3, 4}) {
    for (const double spread : {0.02, 0.1, 0.2}) {
      Network network(8, seed % 2 == 0 ? ring(8) : all_pairs(8), spread, seed);
      EXPECT_GT(network.samples_until_change(1200), 1200) << "seed " << seed << ", " << spread;
    }
  }
}

TEST(RateWatch, ASlowHostIsFoundAndItsRecoveryToo) {
  for (const int hosts : {3, 4, 8}) {
    for (const Routes& routes : {ring(hosts), all_pairs(hosts)}) {
      SCOPED_TRACE(std::to_string(hosts) + " hosts, routes " + std::to_string(routes.size()));
      Network network(hosts, routes, 0.05, 7);
      EXPECT_GT(network.samples_until_change(30), 30);
      network.set_host(1, 0.2);
      EXPECT_LE(network.samples_until_change(10), 4);
      ASSERT_EQ(network.watch.factors().size(), 2U) << "it sends and receives slowly";
      EXPECT_NEAR(static_cast<double>(network.watch.factors().at({1, kAny})), 200, 40);
      EXPECT_NEAR(static_cast<double>(network.watch.factors().at({kAny, 1})), 200, 40);
      EXPECT_GT(network.samples_until_change(100), 100) << "that is how it is now";
      network.set_host(1, 1);
      EXPECT_LE(network.samples_until_change(10), 4);
      EXPECT_TRUE(network.watch.factors().empty());
    }
  }
}

// Others had its share of their links. It may not get all of it back at once.
TEST(RateWatch, WhatSharesALinkWithAHostThatRecoversIsNotSlow) {
  Network network(8, all_pairs(8), 0.05, 7);
  network.samples_until_change(20);
  network.set_host(1, 0.2);
  EXPECT_LE(network.samples_until_change(10), 4);
  EXPECT_GT(network.samples_until_change(70), 70);
  network.set_host(1, 0.75);
  network.factors[{3, 5}] = 0.3;
  network.factors[{4, 7}] = 0.3;
  EXPECT_LE(network.samples_until_change(10), 4);
  EXPECT_TRUE(network.watch.factors().empty());
  EXPECT_GT(network.samples_until_change(100), 100);
}

TEST(RateWatch, ASlowMachineIsNoSlowLinkOrHost) {
  Network network(4, all_pairs(4), 0.05, 3);
  network.samples_until_change(20);
  network.machine = 0.2;
  EXPECT_GT(network.samples_until_change(50), 50);
  network.machine = 1;
  EXPECT_GT(network.samples_until_change(50), 50);
}

TEST(RateWatch, OneBadLookChangesNothing) {
  Network network(4, all_pairs(4), 0.05, 3);
  network.samples_until_change(20);
  for (int i = 0; i < 10; ++i) {
    network.set_host(1, 0.2);
    EXPECT_GT(network.samples_until_change(2), 2);
    network.set_host(1, 1);
    EXPECT_GT(network.samples_until_change(2), 2);
  }
}

/// Disturbs one of four hosts again and again. `disturb`: before each of 1,000 looks.
void expect_changes_at_a_distance(const std::function<void(Network&, int sample)>& disturb) {
  Network network(4, all_pairs(4), 0.05, 3);
  int64_t last = -kPause;
  int changes = 0;
  for (int i = 0; i < 1000; ++i) {
    disturb(network, i);
    if (!network.sample()) continue;
    EXPECT_GE(network.now - last, kPause);
    last = network.now;
    ++changes;
  }
  EXPECT_GE(changes, 2);
}

TEST(RateWatch, ChangesOfLinksKeepTheirDistance) {
  expect_changes_at_a_distance(
      [](Network& network, int sample) { network.set_host(1, sample / 15 % 2 == 0 ? 1 : 0.2); });
}

TEST(RateWatch, ASlowProcessorIsFoundAndItsRecoveryToo) {
  for (const int hosts : {3, 4, 8}) {
    for (const double speed : {0.05, 0.25, 0.5}) {
      SCOPED_TRACE(std::to_string(hosts) + " hosts, speed " + std::to_string(speed));
      Network network(hosts, ring(hosts), 0.05, 7);
      EXPECT_GT(network.samples_until_change(30), 30);
      network.speeds[1] = speed;
      const int samples = network.samples_until_change(10);
      EXPECT_GE(samples, 5) << "three times in a row, for a second each time";
      EXPECT_LE(samples, 8);
      ASSERT_EQ(network.watch.factors().size(), 1U);
      EXPECT_NEAR(static_cast<double>(network.watch.factors().at({1, 1})), 1000 * speed,
                  200 * speed);
      EXPECT_GT(network.samples_until_change(100), 100) << "that is how it is now";
      network.speeds[1] = 1;
      EXPECT_LE(network.samples_until_change(10), 8);
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
    EXPECT_GT(network.samples_until_change(30), 30);
    network.shares[1] = share;
    EXPECT_LE(network.samples_until_change(10), 8);
    ASSERT_EQ(network.watch.factors().size(), 1U);
    EXPECT_NEAR(static_cast<double>(network.watch.factors().at({1, 1})), 1000 * share, 200 * share);
    EXPECT_GT(network.samples_until_change(100), 100) << "that is how it is now";
    network.shares[1] = 1;
    EXPECT_LE(network.samples_until_change(10), 8);
    EXPECT_TRUE(network.watch.factors().empty());
  }
}

// A quota lets a process run at full speed, and then stops it. Few stops meet a reduction.
TEST(RateWatch, AProcessorThatIsStoppedNowAndThenIsFound) {
  for (const uint64_t seed : {1, 2, 3, 4}) {
    Network network(8, all_pairs(8), 0.05, seed);
    network.stop = 0.075;
    network.samples_until_change(30);
    network.shares[5] = 0.25;
    EXPECT_LE(network.samples_until_change(20), 20) << "seed " << seed;
    ASSERT_EQ(network.watch.factors().size(), 1U);
    EXPECT_NEAR(static_cast<double>(network.watch.factors().at({5, 5})), 250, 150);
  }
}

TEST(RateWatch, ASlowLinkAndASlowProcessorAreFoundAtOnce) {
  Network network(4, all_pairs(4), 0.05, 3);
  network.samples_until_change(30);
  network.set_host(1, 0.2);
  network.speeds[2] = 0.25;
  EXPECT_LE(network.samples_until_change(10), 4) << "a link is looked at more often";
  EXPECT_LE(network.samples_until_change(70), 61) << "a pause lies between two changes";
  ASSERT_EQ(network.watch.factors().size(), 3U);
  EXPECT_NEAR(static_cast<double>(network.watch.factors().at({2, 2})), 250, 50);
  EXPECT_TRUE(network.watch.factors().contains({1, kAny}));
}

TEST(RateWatch, ChangesOfProcessorsKeepTheirDistance) {
  expect_changes_at_a_distance(
      [](Network& network, int sample) { network.speeds[1] = sample / 25 % 2 == 0 ? 1 : 0.2; });
}

// Its Plan may leave it nothing to add up.
TEST(RateWatch, AProcessorThatAddsNothingUpCountsAsRecoveredUntilItIsFoundAgain) {
  Network network(4, all_pairs(4), 0.05, 3);
  network.samples_until_change(30);
  network.speeds[1] = 0.2;
  EXPECT_LE(network.samples_until_change(10), 8);
  network.idle = {1};
  const int64_t since = network.now;
  EXPECT_LE(network.samples_until_change(1300), 1210);
  EXPECT_GE(network.now - since, 600'000);
  EXPECT_TRUE(network.watch.factors().empty());
  EXPECT_EQ(network.watch.forgotten(), (std::set<RatedResource>{{1, 1}}));
  network.idle.clear();
  EXPECT_LE(network.samples_until_change(70), 61);
  EXPECT_NEAR(static_cast<double>(network.watch.factors().at({1, 1})), 200, 40);
}

TEST(RateWatch, LittleWorkSaysNothingOfAProcessor) {
  RateWatch watch(one_rack(3));
  const RateWatch::Layout layout{3};
  std::vector<RateWatch::Work> work(layout.size());
  for (int i = 0; i < 200; ++i) {
    for (int host = 0; host < 3; ++host) {
      work[layout.reduced(host)] = {10, i > 100 && host == 1 ? 100 : 1};
    }
    EXPECT_FALSE(watch.sample(1, i * 500, kPause, work));
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
  EXPECT_EQ(meter.take(ThreadTurns{1, 100, 10}).ran, 0) << "whatever was before the first sample";
  EXPECT_EQ(meter.take(ThreadTurns{2, 50, 5}).ran, 0);
  const TurnMeter::Turns turns = meter.take(ThreadTurns{1, 130, 17});
  EXPECT_EQ(turns.ran, 30);
  EXPECT_EQ(turns.waited, 7);
  EXPECT_EQ(meter.take(ThreadTurns{2, 1, 0}).ran, 0) << "another thread of the same number";
  EXPECT_EQ(meter.take(std::nullopt).ran, 0);
}

TEST(LinkMeter, TellsWhatWasSentSinceTheLastTime) {
  constexpr Way kHost{.host = 7};
  constexpr Way kLink{.host = 7, .is_private = true};
  LinkMeter meter;
  std::vector<Connection> all{{kHost, {.local_port = 1, .acknowledged = 100, .busy = 9}},
                              {kHost, {.local_port = 2, .acknowledged = 50, .busy = 1}},
                              {kLink, {.local_port = 1, .acknowledged = 10, .busy = 3}}};
  auto sent = meter.take(all);
  EXPECT_EQ(sent.at(kHost).bytes, 150U);
  EXPECT_EQ(sent.at(kLink).bytes, 10U);
  all[0].totals.acknowledged += 30;
  all[0].totals.busy += 4;
  all[1].totals.acknowledged = 20;  // another connection
  sent = meter.take(all);
  EXPECT_EQ(sent.at(kHost).bytes, 50U);
  EXPECT_EQ(sent.at(kHost).busy, 5U);
  EXPECT_EQ(sent.at(kLink).bytes, 0U);
}

}  // namespace
}  // namespace q7x2
