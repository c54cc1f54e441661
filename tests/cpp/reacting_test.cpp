// The links of a group change while its calls run: all ranks notice it alike, and take the same new
// Plans from the same call on.
#include "plan/reacting.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "plan/plan_book.h"
#include "planning.h"

namespace q7x2 {
namespace {

using test::kGigabit;
using test::kMiB;
using Page = PlanBook::Page;
using Bytes = std::vector<std::byte>;

constexpr std::chrono::milliseconds kPause{30'000};

/// One rank per host, and what its kernel would count.
struct Rank {
  std::unique_ptr<PlanBook> book;
  std::shared_ptr<Page> page;
  std::vector<ConnectionTotals> connections;
};

/// A group whose host 1 has a link with `factor` of its rate. All ranks send to all others.
class ReactingGroup {
 public:
  explicit ReactingGroup(int hosts, std::chrono::milliseconds pause = kPause,
                         CallShape shape = {Collective::kAllReduce, 32 * kMiB}) {
    const auto fabric = test::network(hosts);
    for (int host = 0; host < hosts; ++host) {
      ranks_.push_back({.book = std::make_unique<PlanBook>(
                            std::make_shared<Planner>(host, fabric, ""), host, hosts, "test",
                            /*refines=*/true, pause),
                        .page = nullptr,
                        .connections = {}});
      Rank& rank = ranks_.back();
      rank.page = rank.book->open(shape);
      host_of_[static_cast<uint32_t>(100 + host)] = host;
      for (int to = 0; to < hosts; ++to) {
        if (to != host) rank.connections.push_back({.peer = static_cast<uint32_t>(100 + to)});
      }
    }
  }

  /// One call of all ranks, with what precedes it.
  void call() {
    const uint64_t number = ranks_[0].page->calls();
    const Page::Precursor precursor = ranks_[0].page->precursor_of(number);
    for (Rank& rank : ranks_) EXPECT_EQ(rank.page->precursor_of(number), precursor);
    switch (precursor) {
      case Page::Precursor::kNone:
        break;
      case Page::Precursor::kAnnouncement: {
        Bytes news(Publication::kBytes);
        ranks_[0].book->publish(*ranks_[0].page, news);
        for (Rank& rank : ranks_) rank.book->settle(*rank.page, news);
        break;
      }
      case Page::Precursor::kReview:
        for (Rank& rank : ranks_) rank.page->review(number, {});
        break;
      case Page::Precursor::kLook:
        look(number);
        break;
    }
    send();
    for (Rank& rank : ranks_) rank.page->count();
  }
  /// The algorithm of the next call. Equal on all ranks.
  std::string algorithm() {
    std::string found;
    for (Rank& rank : ranks_) {
      const size_t index = rank.page->refinement().choice_of(rank.page->calls());
      const Choice& choice = rank.book->choice(*rank.page, index);
      EXPECT_TRUE(found.empty() || choice.plan->algorithm == found);
      found = choice.plan->algorithm;
    }
    return found;
  }
  /// Changes so far. Equal on all ranks.
  uint64_t epoch() {
    const uint64_t epoch = ranks_[0].page->reacting().epoch();
    for (Rank& rank : ranks_) EXPECT_EQ(rank.page->reacting().epoch(), epoch);
    return epoch;
  }
  PlanBook& book(size_t rank) { return *ranks_[rank].book; }

  double factor = 1;
  int looks = 0;

 private:
  void look(uint64_t number) {
    const Page::Look kind = ranks_[0].page->look();
    std::vector<int32_t> sum(ranks_[0].page->reacting().bytes() / sizeof(int32_t));
    for (Rank& rank : ranks_) {
      EXPECT_EQ(rank.page->look(), kind);
      std::vector<int32_t> own(sum.size());
      const auto bytes = std::as_writable_bytes(std::span(own));
      if (kind == Page::Look::kRates) {
        rank.page->reacting().write(bytes, rank.connections, host_of_);
      } else if (kind == Page::Look::kChoice && &rank == ranks_.data()) {
        rank.book->propose_anew(*rank.page, bytes);
      }
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += own[i];
    }
    looks += kind == Page::Look::kNothing ? 0 : 1;
    const auto news = std::as_bytes(std::span(sum));
    for (Rank& rank : ranks_) rank.book->take_look(*rank.page, number, news);
  }

  void send() {
    for (size_t from = 0; from < ranks_.size(); ++from) {
      for (ConnectionTotals& each : ranks_[from].connections) {
        const bool is_slow = from == 1 || each.peer == 101;
        const double rate = kGigabit / static_cast<double>(ranks_.size() - 1);
        each.acknowledged += 16 * kMiB;
        each.busy += static_cast<uint64_t>(16 * kMiB / (rate * (is_slow ? factor : 1)) * 1e6);
      }
    }
  }

  std::vector<Rank> ranks_;
  std::map<uint32_t, int> host_of_;
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
    while (group.book(0).records()[0].chapters.size() < 2 && calls++ < 20) group.call();
    EXPECT_LE(calls, 10);
    EXPECT_EQ(group.epoch(), 1U);
    EXPECT_NE(group.algorithm(), before);
    const Fabric fabric = *group.book(static_cast<size_t>(hosts) - 1).fabric();
    EXPECT_NEAR(fabric.hosts[1].egress, 0.2 * kGigabit, 0.02 * kGigabit);
    EXPECT_EQ(fabric.hosts[0].egress, kGigabit);
    EXPECT_EQ(fabric.made.note,
              "host h1 receives at 20 % of its measured rate; host h1 sends at 20 % of its "
              "measured rate");

    for (int i = 0; i < 20; ++i) group.call();
    group.factor = 1;
    calls = 0;
    while (group.book(0).records()[0].chapters.size() < 3 && calls++ < 20) group.call();
    EXPECT_LE(calls, 10);
    EXPECT_EQ(group.algorithm(), before);
    EXPECT_EQ(group.book(0).fabric()->hosts[1].egress, kGigabit);
    const PlanBook::Record record = group.book(2).records()[0];
    EXPECT_EQ(record.chapters[2].reason,
              "host h1 receives at its measured rate again; host h1 sends at its measured rate "
              "again");
  }
}

TEST(Reacting, NewCallsArePlannedForTheLinksAsTheyAre) {
  ReactingGroup group(4, std::chrono::milliseconds(1));
  for (int i = 0; i < 60; ++i) group.call();
  group.factor = 0.2;
  for (int i = 0; i < 10; ++i) group.call();
  ASSERT_EQ(group.epoch(), 1U);
  const CallShape shape{Collective::kAllReduce, 128 * kMiB};
  Bytes news(Publication::kBytes);
  const auto page = group.book(0).open(shape);
  group.book(0).publish(*page, news);
  const auto other = group.book(3).open(shape);
  group.book(3).settle(*other, news);
  EXPECT_EQ(other->choice().plan->algorithm, page->choice().plan->algorithm);
  EXPECT_EQ(page->choice().plan->algorithm, group.algorithm());
}

TEST(Reacting, AnUndisturbedGroupChangesNothing) {
  ReactingGroup group(4);
  for (int i = 0; i < 1000; ++i) group.call();
  EXPECT_EQ(group.epoch(), 0U);
  EXPECT_GT(group.looks, 900);
}

TEST(Reacting, RankZeroMaySwitchItOff) {
  ReactingGroup group(4, std::chrono::milliseconds(0));
  for (int i = 0; i < 20; ++i) group.call();
  EXPECT_EQ(group.looks, 1) << "the first one says so";
}

TEST(Reacting, OnlyLongCallsOfSeveralHostsArePrecededByLooks) {
  const auto between = [](int hosts, size_t bytes) {
    return Reacting(std::make_shared<Planner>(0, test::network(hosts), ""), 0, kPause)
        .calls_between_looks({Collective::kAllReduce, bytes});
  };
  EXPECT_EQ(between(4, 64 << 10), 0U);
  EXPECT_EQ(between(2, 64 * kMiB), 0U);
  EXPECT_EQ(between(65, 64 * kMiB), 0U);
  EXPECT_EQ(between(4, 64 * kMiB), 1U);
  EXPECT_EQ(between(4, kMiB), 11U) << "a tenth of a second of 125 MB/s";
}

}  // namespace
}  // namespace q7x2
