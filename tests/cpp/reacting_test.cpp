// The links and processors of a group change while its calls run: all ranks notice it alike, and
// take the same new Plans from the same call on.
#include "plan/choose/reacting.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "fabric/private_links.h"
#include "plan/choose/plan_cache.h"
#include "planning.h"

namespace q7x2 {
namespace {

using test::kGigabit;
using test::kMiB;
using Entry = PlanCache::Entry;
using Bytes = std::vector<std::byte>;

constexpr std::chrono::milliseconds kPause{30'000};

/// Of a test's own clock, between two looks.
constexpr int32_t kMilliseconds = 500;

/// One rank per host, and what its kernel would count.
struct Rank {
  std::unique_ptr<PlanCache> plans;
  std::shared_ptr<Entry> entry;
  std::vector<Connection> connections;
  ThreadTurns turns;
};

/// A group whose host 1 has a link with `factor` of its rate, and whose host 2 has `share` of a
/// processor with `speed` of the others'. All ranks send to all others.
class ReactingGroup {
 public:
  explicit ReactingGroup(int hosts, std::chrono::milliseconds pause = kPause,
                         double rate = kGigabit)
      : ReactingGroup(Fabric::uniform(hosts, 1, rate), pause) {}
  ReactingGroup(const Fabric& known, std::chrono::milliseconds pause) {
    const CallShape shape{Collective::kAllReduce, 32 * kMiB};
    const auto fabric = std::make_shared<Fabric>(known);
    const auto hosts = static_cast<int>(known.hosts.size());
    for (int host = 0; host < hosts; ++host) {
      ranks_.push_back({.plans = std::make_unique<PlanCache>(
                            std::make_shared<Planner>(host, fabric, ""), host, hosts, "test",
                            /*refines=*/true, pause),
                        .entry = nullptr,
                        .connections = {},
                        .turns = {}});
      Rank& rank = ranks_.back();
      rank.entry = rank.plans->open(shape);
      for (int to = 0; to < hosts; ++to) {
        if (to == host) continue;
        for (const bool is_private : {false, true}) {
          if (is_private && find_link(known, host, to) == nullptr) continue;
          rank.connections.push_back(
              {.way = {to, is_private}, .totals = {.peer = {IpAddress::v4(100U + to)}}});
        }
      }
    }
  }

  /// One call of all ranks, with what precedes it.
  void call() {
    const uint64_t number = ranks_[0].entry->calls();
    const Entry::Prerequisite prerequisite = ranks_[0].entry->prerequisite_of(number);
    for (Rank& rank : ranks_) EXPECT_EQ(rank.entry->prerequisite_of(number), prerequisite);
    switch (prerequisite) {
      case Entry::Prerequisite::kNone:
        break;
      case Entry::Prerequisite::kAnnouncement: {
        Bytes news(Publication::kBytes);
        ranks_[0].plans->publish(*ranks_[0].entry, news);
        for (Rank& rank : ranks_) rank.plans->settle(*rank.entry, news);
        break;
      }
      case Entry::Prerequisite::kTuningRound:
        for (Rank& rank : ranks_) rank.entry->tune(number, figures);
        break;
      case Entry::Prerequisite::kRateSample:
        for (const Entry::RateSample kind :
             {Entry::RateSample::kRates, Entry::RateSample::kChoice}) {
          if (ranks_[0].entry->rate_sample() == kind) sample(number);
        }
        break;
    }
    send();
    for (Rank& rank : ranks_) rank.entry->count();
  }
  /// The algorithm of the next call. Equal on all ranks.
  std::string algorithm() {
    std::string found;
    for (Rank& rank : ranks_) {
      const size_t index = rank.entry->refinement().choice_of(rank.entry->calls());
      const Choice& choice = rank.plans->choice(*rank.entry, index);
      EXPECT_TRUE(found.empty() || choice.plan->algorithm == found);
      found = choice.plan->algorithm;
    }
    return found;
  }
  /// Changes so far. Equal on all ranks.
  uint64_t epoch() {
    const uint64_t epoch = ranks_[0].entry->reacting().epoch();
    for (Rank& rank : ranks_) EXPECT_EQ(rank.entry->reacting().epoch(), epoch);
    return epoch;
  }
  PlanCache& plans(size_t rank) { return *ranks_[rank].plans; }

  /// How many calls it takes until they take the Plan of another epoch; `most` and one more: they
  /// do not.
  int calls_until_change(int most) {
    const size_t before = plans(0).records()[0].revisions.size();
    int calls = 0;
    while (plans(0).records()[0].revisions.size() == before && calls++ < most) call();
    return calls;
  }

  Refinement::Figures figures = {};               ///< of reviews
  double factor = 1;                              ///< of host 1, or of what is in `slow_links`
  std::set<std::pair<int, int>> slow_links = {};  ///< sending and receiving host
  double speed = 1;
  double share = 1;
  int samples = 0;

 private:
  void sample(uint64_t number) {
    const Entry::RateSample kind = ranks_[0].entry->rate_sample();
    std::vector<int32_t> sum(ranks_[0].entry->reacting().bytes() / sizeof(int32_t));
    for (Rank& rank : ranks_) {
      EXPECT_EQ(rank.entry->rate_sample(), kind);
      std::vector<int32_t> own(sum.size());
      const auto bytes = std::as_writable_bytes(std::span(own));
      if (kind == Entry::RateSample::kRates) {
        rank.entry->reacting().write(
            bytes, {rank.connections, rank.plans->reductions().take(), rank.turns});
      } else if (kind == Entry::RateSample::kChoice && &rank == ranks_.data()) {
        rank.plans->propose_anew(*rank.entry, bytes);
      }
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += own[i];
    }
    samples += kind == Entry::RateSample::kNothing ? 0 : 1;
    if (kind == Entry::RateSample::kRates && sum[1] > 0) sum[0] = now_ += kMilliseconds;
    const auto news = std::as_bytes(std::span(sum));
    for (Rank& rank : ranks_) rank.plans->take_rate_sample(*rank.entry, number, news);
  }

  void send() {
    for (size_t from = 0; from < ranks_.size(); ++from) {
      for (auto& [way, totals] : ranks_[from].connections) {
        const bool is_slow = way.is_private
                                 ? slow_links.contains({static_cast<int>(from), way.host})
                                 : slow_links.empty() && (from == 1 || way.host == 1);
        const double rate = kGigabit / static_cast<double>(ranks_.size() - 1);
        totals.acknowledged += 16 * kMiB;
        totals.busy += static_cast<uint64_t>(16 * kMiB / (rate * (is_slow ? factor : 1)) * 1e6);
      }
      ranks_[from].turns.ran += 100'000'000;
      ranks_[from].turns.waited += static_cast<int64_t>(1e8 * (from == 2 ? 1 / share - 1 : 0));
      const double seconds = 0.01 / (from == 2 ? speed : 1);
      ranks_[from].plans->reductions().add(2, 32 * kMiB, static_cast<int64_t>(seconds * 1e9));
    }
  }

  int32_t now_ = 0;
  std::vector<Rank> ranks_;
};

TEST(Reacting, ASlowLinkChangesThePlanOfAllRanksWithinTenCalls) {
  for (const int hosts : {4, 8}) {
    SCOPED_TRACE(hosts);
    ReactingGroup group(hosts, std::chrono::milliseconds(1));
    for (int i = 0; i < 60; ++i) group.call();
    EXPECT_EQ(group.epoch(), 0U);
    const std::string before = group.algorithm();

    group.factor = 0.2;
    int calls = 0;
    while (group.plans(0).records()[0].revisions.size() < 2 && calls++ < 20) group.call();
    EXPECT_LE(calls, 10);
    EXPECT_EQ(group.epoch(), 1U);
    EXPECT_NE(group.algorithm(), before);
    const Fabric fabric = *group.plans(static_cast<size_t>(hosts) - 1).fabric();
    EXPECT_NEAR(fabric.hosts[1].egress, 0.2 * kGigabit, 0.02 * kGigabit);
    EXPECT_EQ(fabric.hosts[0].egress, kGigabit);
    EXPECT_EQ(fabric.made.note,
              "host h1 receives at 20 % of its measured rate; host h1 sends at 20 % of its "
              "measured rate");

    for (int i = 0; i < 20; ++i) group.call();
    group.factor = 1;
    calls = 0;
    while (group.plans(0).records()[0].revisions.size() < 3 && calls++ < 20) group.call();
    EXPECT_LE(calls, 10);
    EXPECT_EQ(group.algorithm(), before);
    EXPECT_EQ(group.plans(0).fabric()->hosts[1].egress, kGigabit);
    const PlanCache::Record record = group.plans(2).records()[0];
    EXPECT_EQ(record.revisions[2].reason,
              "host h1 receives at its measured rate again; host h1 sends at its measured rate "
              "again");
  }
}

TEST(Reacting, AfterARecoveryCallsTakeWhatWasBestBefore) {
  ReactingGroup group(8, std::chrono::milliseconds(1));
  for (size_t i = 0; i < group.figures.size(); ++i) {
    group.figures[i] = {.nanoseconds = i == 2 ? 100'000'000 : 300'000'000, .noise = 1};
  }
  group.call();
  const std::string first = group.algorithm();
  for (int i = 0; i < 70; ++i) group.call();
  const std::string best = group.algorithm();
  EXPECT_NE(best, first);
  group.figures = {};
  group.factor = 0.2;
  EXPECT_LE(group.calls_until_change(10), 10);
  for (int i = 0; i < 20; ++i) group.call();
  group.factor = 1;
  EXPECT_LE(group.calls_until_change(10), 10);
  EXPECT_EQ(group.algorithm(), best);
  EXPECT_EQ(group.plans(0).records()[0].revisions[2].proposals.size(),
            group.plans(0).records()[0].revisions[0].proposals.size());
}

/// The share of the data that a rank adds up by rank 0's newest proposal.
double share_of(ReactingGroup& group, int rank) {
  const PlanCache::Record record = group.plans(0).records()[0];
  const std::string& algorithm = record.revisions.back().proposals.front().algorithm;
  const auto schedule = Planner(0, group.plans(0).fabric(), "")
                            .schedule({record.collective, record.bytes}, algorithm);
  const Plan plan = schedule->project(rank);
  const double total = std::accumulate(plan.part_weights.begin(), plan.part_weights.end(), 0.0);
  double share = 0;
  for (const Op& op : plan.ops) {
    if (op.kind == OpKind::kReduce) share += plan.part_weights[op.length_of.index] / total;
  }
  return share;
}

// Where links are fast. On slow ones the Plan stays what it was, as nobody waits for the processor.
TEST(Reacting, ASlowProcessorHasLessToAddUpUntilItRecovers) {
  ReactingGroup group(8, std::chrono::milliseconds(1), 200 * kGigabit);
  for (int i = 0; i < 400; ++i) group.call();
  EXPECT_EQ(group.epoch(), 0U);

  group.speed = 0.25;
  EXPECT_LE(group.calls_until_change(100), 100);
  EXPECT_EQ(group.epoch(), 1U);
  const Fabric fabric = *group.plans(7).fabric();
  EXPECT_EQ(fabric.made.note, "host h2 computes at 25 % of its measured rate");
  EXPECT_EQ(fabric.host_reduce_rate(2), 0.25 * fabric.host_reduce_rate(1));
  EXPECT_LT(share_of(group, 2), 0.5 * share_of(group, 1));

  for (int i = 0; i < 400; ++i) group.call();
  EXPECT_EQ(group.epoch(), 1U);
  group.speed = 1;
  EXPECT_LE(group.calls_until_change(100), 100);
  EXPECT_NEAR(share_of(group, 2), share_of(group, 1), 0.01);
  EXPECT_EQ(group.plans(2).records()[0].revisions[2].reason,
            "host h2 computes at its measured rate again");
}

TEST(Reacting, AProcessorThatRunsLessOftenIsSlow) {
  ReactingGroup group(4, std::chrono::milliseconds(1));
  for (int i = 0; i < 100; ++i) group.call();
  group.share = 0.25;
  EXPECT_LE(group.calls_until_change(20), 20);
  EXPECT_EQ(group.plans(3).fabric()->made.note, "host h2 computes at 25 % of its measured rate");
}

TEST(Reacting, ASlowLinkAndASlowProcessorAreFoundAtOnce) {
  ReactingGroup group(4, std::chrono::milliseconds(1));
  for (int i = 0; i < 100; ++i) group.call();
  group.factor = 0.2;
  group.speed = 0.25;
  for (int i = 0; i < 200; ++i) group.call();
  EXPECT_EQ(group.epoch(), 2U);
  const Fabric fabric = *group.plans(3).fabric();
  EXPECT_NEAR(fabric.hosts[1].egress, 0.2 * kGigabit, 0.02 * kGigabit);
  EXPECT_EQ(fabric.host_reduce_rate(2), 0.25 * fabric.host_reduce_rate(1));
}

/// Hosts 0 to 3 in a ring of private links that are twice as fast as the network.
Fabric ring_of_links() {
  Fabric fabric = Fabric::uniform(4, 1, kGigabit);
  for (int host = 0; host < 4; ++host) {
    fabric.links.push_back({host, (host + 1) % 4, 2 * kGigabit, 1e-5});
  }
  return fabric;
}

// The calls that are planned then take the network: as if they had been probed anew.
TEST(Reacting, ASlowPrivateLinkIsNamedAndGivenUp) {
  ReactingGroup group(ring_of_links(), std::chrono::milliseconds(1));
  group.slow_links = {{2, 3}};
  for (int i = 0; i < 60; ++i) group.call();
  EXPECT_EQ(group.epoch(), 0U);
  group.factor = 0.1;
  EXPECT_LE(group.calls_until_change(10), 10);
  const Fabric fabric = *group.plans(3).fabric();
  EXPECT_EQ(fabric.made.note,
            "host h2 sends to host h3 over their private link at 10 % of its measured rate");
  EXPECT_EQ(find_link(fabric, 2, 3), nullptr);
  EXPECT_EQ(fabric.links.size(), 3U);
  EXPECT_EQ(fabric.hosts[2].egress, kGigabit);
}

TEST(Reacting, NewCallsArePlannedForTheLinksAsTheyAre) {
  ReactingGroup group(4, std::chrono::milliseconds(1));
  for (int i = 0; i < 60; ++i) group.call();
  group.factor = 0.2;
  for (int i = 0; i < 10; ++i) group.call();
  ASSERT_EQ(group.epoch(), 1U);
  const CallShape shape{Collective::kAllReduce, 128 * kMiB};
  Bytes news(Publication::kBytes);
  const auto entry = group.plans(0).open(shape);
  group.plans(0).publish(*entry, news);
  const auto other = group.plans(3).open(shape);
  group.plans(3).settle(*other, news);
  EXPECT_EQ(other->choice().plan->algorithm, entry->choice().plan->algorithm);
  EXPECT_EQ(entry->choice().plan->algorithm, group.algorithm());
}

TEST(Reacting, AnUndisturbedGroupChangesNothing) {
  ReactingGroup group(4);
  for (int i = 0; i < 1000; ++i) group.call();
  EXPECT_EQ(group.epoch(), 0U);
  EXPECT_GT(group.samples, 900);
}

TEST(Reacting, RankZeroMaySwitchItOff) {
  ReactingGroup group(4, std::chrono::milliseconds(0));
  for (int i = 0; i < 20; ++i) group.call();
  EXPECT_EQ(group.samples, 1) << "the first one says so";
}

// The message is added up: what the ranks of a host write must fit together.
TEST(Reacting, ALookOfSixtyFourHostsHoldsTheMostThatTheyCanSay) {
  constexpr int kHosts = 64;
  constexpr int kRanksPerHost = 100;
  const auto fabric = std::make_shared<Fabric>(Fabric::uniform(kHosts, kRanksPerHost, kGigabit));
  Reacting last(std::make_shared<Planner>(0, fabric, ""), kHosts * kRanksPerHost - 1, kPause);
  EXPECT_GE(last.bytes(), size_t{kHosts * kHosts * 8});
  EXPECT_EQ(Reacting::most_bytes(kHosts * kRanksPerHost), last.bytes());
  std::vector<int32_t> figures(last.bytes() / sizeof(int32_t), -1);
  const auto write = [&](ThreadTurns turns) {
    last.write(std::as_writable_bytes(std::span(figures)), {{}, {UINT64_MAX, INT64_MAX}, turns});
  };
  write({});
  write({0, INT64_MAX / 2, INT64_MAX / 2});
  // After the two words of the header.
  const RateWatch::Layout layout{kHosts};
  const size_t reduced = 2 + 2 * layout.reduced(kHosts - 1);
  const size_t turns = 2 + 2 * layout.turns(kHosts - 1);
  for (size_t i = 0; i < figures.size(); ++i) {
    const bool is_its = i / 2 == reduced / 2 || i / 2 == turns / 2;
    EXPECT_EQ(figures[i], is_its ? 1 << 24 : 0) << i;
    EXPECT_LE(int64_t{figures[i]} * kRanksPerHost, INT32_MAX);
  }
}

TEST(Reacting, OnlyLongCallsOfSeveralHostsArePrecededByLooks) {
  const auto between = [](int hosts, size_t bytes) {
    return Reacting(std::make_shared<Planner>(0, test::network(hosts), ""), 0, kPause)
        .calls_between_rate_samples({Collective::kAllReduce, bytes});
  };
  EXPECT_EQ(between(4, 64 << 10), 0U);
  EXPECT_EQ(between(2, 64 * kMiB), 0U);
  EXPECT_EQ(between(65, 64 * kMiB), 0U);
  EXPECT_EQ(between(4, 64 * kMiB), 1U);
  EXPECT_EQ(between(4, kMiB), 11U) << "a tenth of a second of 125 MB/s";
}

}  // namespace
}  // namespace q7x2
