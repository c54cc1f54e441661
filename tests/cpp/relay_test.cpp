// Texts along a binomial tree: steps and messages counted, on simulated ranks and on real ones.
#include "executor/probe/relay.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "executor/probe/courier.h"
#include "ranks.h"

namespace q7x2 {
namespace {

int log2_up(int count) {
  return static_cast<int>(std::bit_width(static_cast<unsigned>(count - 1)));
}

/// All ranks at once, step by step: a message that is sent in a step is received in it.
void expect_gathers(int count) {
  SCOPED_TRACE(count);
  std::vector<std::vector<Handover>> lists;
  std::vector<std::vector<int>> known;  // positions, by position
  for (int position = 0; position < count; ++position) {
    lists.push_back(handovers(position, count));
    known.push_back({position});
    EXPECT_LE(static_cast<int>(lists.back().size()), log2_up(count));
    const auto sent = std::ranges::count(lists.back(), position, &Handover::from);
    EXPECT_EQ(sent, position == 0 ? 0 : 1);
    EXPECT_TRUE(std::ranges::is_sorted(lists.back(), std::less<>(), &Handover::step));
  }
  for (int step = 0; step < log2_up(count); ++step) {
    for (int position = 0; position < count; ++position) {
      const auto& list = lists[static_cast<size_t>(position)];
      EXPECT_LE(std::ranges::count(list, step, &Handover::step), 1);
      for (const Handover& each : list) {
        if (each.step != step || each.from != position) continue;
        const auto& theirs = lists[static_cast<size_t>(each.to)];
        const auto met = std::ranges::find(theirs, step, &Handover::step);
        ASSERT_NE(met, theirs.end());
        EXPECT_EQ(met->from, position);
        auto& from = known[static_cast<size_t>(position)];
        auto& to = known[static_cast<size_t>(each.to)];
        EXPECT_EQ(static_cast<int>(from.size()), each.count);
        EXPECT_EQ(met->count, each.count);
        to.insert(to.end(), from.begin(), from.end());
      }
    }
  }
  EXPECT_EQ(static_cast<int>(known[0].size()), count);
  EXPECT_TRUE(std::ranges::is_sorted(known[0])) << "by position";
  for (const auto& list : lists) {
    for (const Handover& each : list) EXPECT_LT(each.step, log2_up(count));
  }
}

TEST(Relay, TakesLogarithmicallyManySteps) {
  for (int count = 1; count <= 40; ++count) expect_gathers(count);
  expect_gathers(64);
  expect_gathers(1000);
  expect_gathers(1024);
}

TEST(Relay, SpreadingComesFromWhomGatheringGoesTo) {
  std::vector<int> order(1024);
  for (int i = 0; i < 1024; ++i) order[static_cast<size_t>(i)] = 1023 - i;
  EXPECT_EQ(spread_source(order, 0), -1);
  EXPECT_EQ(spread_source(order, 1), 1023);
  EXPECT_EQ(spread_source(order, 7), 1023 - 6);
  EXPECT_EQ(spread_source(order, 512), 1023);
}

constexpr std::chrono::seconds kTimeout{10};

TEST(Relay, GathersAndSpreadsBetweenRanks) {
  test::run_ranks(5, [](test::Rank& rank) {
    // Ranks 0 and 3 are on one host, the others on another.
    ::setenv("Q7X2_HOST_ID", rank.rank % 3 == 0 ? "a" : "b", 1);
    GroupCourier courier(rank.group(), size_t{1} << 20, Clock::now() + kTimeout);
    const std::vector<int> order = {0, 3, 1, 2, 4};
    const auto position = static_cast<int>(std::ranges::find(order, rank.rank) - order.begin());
    for (const size_t bytes : {0, 1, 40, 41, 100'000}) {
      const std::string mine(bytes, static_cast<char>('a' + rank.rank));
      const std::vector<std::string> all = gather(courier, order, position, mine);
      ASSERT_EQ(all.size(), rank.rank == 0 ? 5U : 0U);
      for (size_t i = 0; i < all.size(); ++i) {
        EXPECT_EQ(all[i], std::string(bytes, static_cast<char>('a' + order[i])));
      }
      const std::string text = rank.rank == 0 ? std::string(bytes, 'x') : "not this";
      EXPECT_EQ(spread(courier, order, position, text), std::string(bytes, 'x'));
    }
    rank.barrier();
  });
}

ErrorCode failure(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "no error";
  return ErrorCode::kInternal;
}

TEST(Relay, ATextThatIsTooLongIsRefused) {
  test::run_ranks(2, [](test::Rank& rank) {
    const auto group = rank.group();
    GroupCourier courier(group, rank.rank == 0 ? 100 : 1000, Clock::now() + kTimeout);
    if (rank.rank == 0) {
      EXPECT_EQ(failure([&] { courier.receive(1); }), ErrorCode::kMismatch);
      group->leave();
    } else {
      EXPECT_EQ(failure([&] { courier.send(0, std::string(101, 'x')); }), ErrorCode::kPeerLeft);
    }
    rank.barrier();
  });
}

class Scripted final : public Courier {
 public:
  explicit Scripted(std::string text) : text_(std::move(text)) {}
  void send(int, const std::string&) override {}
  std::string receive(int) override { return text_; }

 private:
  const std::string text_;
};

TEST(Relay, WhatIsNoListOfTextsIsRefused) {
  for (const std::string& text :
       {std::string(), std::string("\xff\xff\xff\xff"), std::string(8, '\0')}) {
    Scripted courier(text);
    EXPECT_THROW(gather(courier, {0, 1}, 0, "mine"), Error);
  }
}

}  // namespace
}  // namespace q7x2
