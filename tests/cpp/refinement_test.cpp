// Which choice a kind of call settles on, from the times of its calls.
#include "plan/choose/refinement.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

constexpr int64_t kMillisecond = 1'000'000;

/// The largest figures among the ranks.
Refinement::Figures largest(const std::vector<Refinement>& ranks) {
  Refinement::Figures most{};
  for (const Refinement& rank : ranks) {
    const Refinement::Figures own = rank.figures();
    for (size_t i = 0; i < own.size(); ++i) {
      most[i].nanoseconds = std::max(most[i].nanoseconds, own[i].nanoseconds);
      most[i].noise = std::max(most[i].noise, own[i].noise);
    }
  }
  return most;
}

using Time = std::function<int64_t(size_t rank, uint64_t call, size_t choice)>;

/// Makes calls number `begin` ... `end - 1`. Returns the choice of each.
std::vector<size_t> run(std::vector<Refinement>& ranks, uint64_t begin, uint64_t end,
                        const Time& time) {
  std::vector<size_t> choices;
  for (uint64_t call = begin; call < end; ++call) {
    if (Refinement::is_tuning_round(call)) {
      const Refinement::Figures slowest = largest(ranks);
      for (Refinement& rank : ranks) rank.tune(call, slowest);
    }
    const size_t choice = ranks[0].choice_of(call);
    for (size_t i = 0; i < ranks.size(); ++i) {
      EXPECT_EQ(ranks[i].choice_of(call), choice) << "rank " << i << ", call " << call;
      if (ranks[i].measures(call)) ranks[i].record(choice, time(i, call, choice));
    }
    choices.push_back(choice);
  }
  return choices;
}

std::vector<Refinement> ranks(size_t count, const std::vector<int64_t>& predicted) {
  return std::vector<Refinement>(count, Refinement(predicted));
}

size_t changes(const std::vector<size_t>& choices) {
  size_t count = 0;
  for (size_t i = 1; i < choices.size(); ++i) count += choices[i] != choices[i - 1];
  return count;
}

TEST(Refinement, OneChoiceStays) {
  auto alone = ranks(2, {kMillisecond});
  EXPECT_FALSE(alone[0].is_active());
  const auto choices = run(alone, 0, 1000, [](auto...) { return kMillisecond; });
  EXPECT_EQ(std::set(choices.begin(), choices.end()), std::set<size_t>{0});
  EXPECT_FALSE(alone[0].measures(30));
  EXPECT_EQ(alone[0].history().size(), 1U);
}

TEST(Refinement, FewCallsTakeTheFirstChoice) {
  auto group = ranks(2, {kMillisecond, kMillisecond, kMillisecond});
  const auto choices = run(group, 0, 6, [](auto...) { return kMillisecond; });
  EXPECT_EQ(choices, std::vector<size_t>(6, 0));
}

TEST(Refinement, AllChoicesTakeTurnsInOrdersOfTheirOwn) {
  for (size_t count = 2; count <= Refinement::kMostChoices; ++count) {
    auto group = ranks(2, std::vector<int64_t>(count, kMillisecond));
    run(group, 0, 6, [](auto...) { return kMillisecond; });
    std::set<std::vector<size_t>> orders;
    for (size_t round = 0; round < 18 / count; ++round) {
      const uint64_t begin = 6 + round * count;
      auto order = run(group, begin, begin + count, [](auto...) { return kMillisecond; });
      orders.insert(order);
      std::ranges::sort(order);
      for (size_t i = 0; i < count; ++i) EXPECT_EQ(order[i], i);
    }
    EXPECT_GT(orders.size(), 1U) << count << " choices";
  }
}

TEST(Refinement, SettlesOnTheFastestChoice) {
  const std::vector<int64_t> real = {1000, 1600, 700, 1300, 850, 1100};
  auto group = ranks(3, std::vector<int64_t>(real.size(), 1000));
  const auto choices =
      run(group, 0, 100, [&](size_t, uint64_t, size_t choice) { return real[choice] * 1000; });
  for (size_t call = 48; call < 100; ++call) ASSERT_EQ(choices[call], 2U) << call;
  for (size_t call = 24; call < 48; ++call) {
    EXPECT_NE(choices[call], 1U) << "it lost the first look";
  }
  const auto& history = group[0].history();
  ASSERT_EQ(history.size(), 4U);
  EXPECT_EQ(history[1].choices.size(), real.size());
  EXPECT_EQ(history[2].choices.size(), 3U);
  EXPECT_EQ(history[3].call, 48U);
  EXPECT_EQ(history[3].choices, std::vector<size_t>{2});
  EXPECT_EQ(history[3].figures[2].nanoseconds, 700'000);
}

// In some algorithms a rank is done long before the others.
TEST(Refinement, TheSlowestRankCounts) {
  auto group = ranks(2, {1000, 1000});
  const auto choices = run(group, 0, 60, [](size_t rank, uint64_t, size_t choice) {
    return choice == 0 ? 1000 : rank == 0 ? 500 : 1500;
  });
  EXPECT_EQ(choices.back(), 0U);
}

TEST(Refinement, LittleIsNotWorthAChange) {
  auto group = ranks(2, {1000, 1000, 1000});
  const auto choices = run(group, 0, 60, [](size_t, uint64_t, size_t choice) {
    return int64_t{1000} - static_cast<int64_t>(choice) * 20;
  });
  EXPECT_EQ(choices.back(), 0U);
}

// Where calls wait for late ranks, times say little, and the prediction counts.
TEST(Refinement, NoiseDoesNotOverruleThePrediction) {
  int wrong = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    std::exponential_distribution<double> late(1.0 / 5000);
    auto group = ranks(4, {1000, 1500, 1800, 1900});
    const auto choices = run(group, 0, 60, [&](size_t, uint64_t, size_t) {
      return int64_t{1000} + static_cast<int64_t>(late(random));
    });
    wrong += choices.back() != 0;
  }
  EXPECT_LE(wrong, 20) << "of seeds 1 ... 200";
}

TEST(Refinement, FindsAFasterChoiceInNoise) {
  int right = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    std::exponential_distribution<double> noise(1.0 / 150);
    auto group = ranks(2, {1000, 1200, 1300, 1400, 1900});
    const std::vector<int64_t> real = {1000, 1100, 700, 1200, 2500};
    const auto choices = run(group, 0, 60, [&](size_t, uint64_t, size_t choice) {
      return real[choice] + static_cast<int64_t>(noise(random));
    });
    right += choices.back() == 2;
  }
  EXPECT_GE(right, 190) << "of seeds 1 ... 200";
}

TEST(Refinement, NeverOscillates) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    std::mt19937_64 random(seed);
    std::lognormal_distribution<double> noise(0, 1);
    auto group = ranks(3, {1000, 1000, 1000, 1000});
    const Time time = [&](auto...) { return static_cast<int64_t>(1000 * noise(random)) + 1; };
    run(group, 0, 48, time);
    for (uint64_t begin = 48, end = 128; end <= 8192; begin = end, end *= 2) {
      const auto choices = run(group, begin, end, time);
      const size_t explored = begin == 48 ? 0 : 42;
      const std::vector<size_t> settled(choices.begin() + static_cast<long>(explored),
                                        choices.end());
      EXPECT_EQ(changes(settled), 0U) << "seed " << seed << ", calls from " << begin + explored;
    }
  }
}

TEST(Refinement, LooksAgainWhereCallsHaveBecomeSlower) {
  auto group = ranks(2, {1000, 1000});
  const auto before =
      run(group, 0, 200, [](size_t, uint64_t, size_t choice) { return choice == 0 ? 1000 : 1200; });
  EXPECT_EQ(before.back(), 0U);
  const auto after = run(group, 200, 400,
                         [](size_t, uint64_t, size_t choice) { return choice == 0 ? 3000 : 1200; });
  EXPECT_EQ(changes(std::vector(after.begin(), after.begin() + 56)), 0U) << "until call 256";
  EXPECT_EQ(after.back(), 1U);
}

TEST(Refinement, ExtremeFiguresDecideSomething) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 1000; ++i) {
    Refinement refinement({1, INT64_MAX, 1000});
    Refinement::Figures figures{};
    for (auto& figure : figures) {
      figure = {static_cast<int64_t>(random() >> random() % 64),
                static_cast<int64_t>(random() >> random() % 64)};
    }
    refinement.tune(24, figures);
    refinement.tune(48, figures);
    refinement.tune(128, figures);
    EXPECT_LT(refinement.choice_of(130), 3U) << "seed 5, turn " << i;
  }
}

}  // namespace
}  // namespace q7x2
