// Which links have changed, from noisy rates.
#include "ledger/rate_watch.h"

#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "fabric/rate_changes.h"
#include "ledger/link_meter.h"

namespace q7x2 {
namespace {

constexpr int kAny = RateWatch::kAny;
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

/// A network whose links have factors, and rates that spread.
class Network {
 public:
  Network(int hosts, Routes routes, double spread, uint64_t seed)
      : watch(hosts), hosts_(hosts), routes_(std::move(routes)), noise_(0, spread), random_(seed) {}

  /// True: something has changed.
  bool look() {
    now += 500;
    std::vector<RateWatch::Sent> sent(static_cast<size_t>(hosts_ * hosts_));
    for (const auto& [from, to] : routes_) {
      double rate = 100e3 * machine;
      for (const auto& [link, factor] : factors) {
        if ((link.first == from || link.first == kAny) &&
            (link.second == to || link.second == kAny))
          rate *= factor;
      }
      rate *= std::exp(noise_(random_));
      sent[static_cast<size_t>(from * hosts_ + to)] = {10'000,
                                                       static_cast<int32_t>(10'000e6 / rate)};
    }
    return watch.look(1, now, kPause, sent);
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
  double machine = 1;
  int64_t now = 0;

 private:
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

TEST(RateWatch, ASlowMachineIsNoSlowLink) {
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

TEST(RateWatch, ChangesKeepTheirDistance) {
  Network network(4, all_pairs(4), 0.05, 3);
  int64_t last = -kPause;
  int changes = 0;
  for (int i = 0; i < 1000; ++i) {
    network.set_host(1, i / 15 % 2 == 0 ? 1 : 0.2);
    if (!network.look()) continue;
    EXPECT_GE(network.now - last, kPause);
    last = network.now;
    ++changes;
  }
  EXPECT_GE(changes, 2);
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

TEST(RateChanges, ChangeTheRatesOfTheirLinksAlone) {
  const Fabric measured = Fabric::uniform(3, 2, 1e9);
  const Fabric changed = with_rate_changes(measured, {{{1, kAny}, 200}, {{0, 2}, 500}});
  EXPECT_EQ(changed.hosts[1].egress, 0.2e9);
  EXPECT_EQ(changed.hosts[1].ingress, 1e9);
  EXPECT_EQ(changed.hosts[0].egress, 1e9);
  ASSERT_EQ(changed.pairs.size(), 1U);
  EXPECT_EQ(changed.pairs[0].rate, 0.5e9);
  changed.validate();
  EXPECT_THROW(with_rate_changes(measured, {{{3, kAny}, 200}}), Error);
  EXPECT_EQ(
      rate_changes_text(measured, {{{2, kAny}, 300}}, {{{kAny, 1}, 200}, {{0, 2}, 500}}),
      "host h1 receives at 20 % of its measured rate; host h0 sends to host h2 at 50 % of its "
      "measured rate; host h2 sends at its measured rate again");
}

}  // namespace
}  // namespace q7x2
