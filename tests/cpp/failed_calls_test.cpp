// Collectives that have failed alone, and who knows of it.
#include "transport/group/failed_calls.h"

#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

const Error kWhy(ErrorCode::kTimeout, "it timed out", 2);

TEST(FailedCalls, SaysWhyACallHasFailed) {
  FailedCalls calls;
  EXPECT_TRUE(calls.is_empty());
  EXPECT_EQ(calls.find(7), nullptr);
  calls.add(7, kWhy, {});
  calls.add(7, Error(ErrorCode::kAborted, "another reason"), {});
  ASSERT_NE(calls.find(7), nullptr);
  EXPECT_EQ(calls.find(7)->what(), std::string("it timed out")) << "the first one counts";
  EXPECT_EQ(calls.find(8), nullptr);
}

TEST(FailedCalls, KnowsWhoHasNotConfirmed) {
  FailedCalls calls;
  EXPECT_EQ(calls.oldest_unconfirmed(), FailedCalls::kNone);
  EXPECT_TRUE(calls.unconfirmed_by().empty());
  calls.add(9, kWhy, {1, 2});
  calls.add(7, kWhy, {1, 5});
  EXPECT_EQ(calls.oldest_unconfirmed(), 7U);
  EXPECT_EQ(calls.unconfirmed_by(), (std::set<int>{1, 5}));
  EXPECT_TRUE(calls.confirm(7, 1));
  calls.forget_rank(5);
  EXPECT_EQ(calls.oldest_unconfirmed(), 9U);
  EXPECT_TRUE(calls.confirm(9, 2));
  EXPECT_EQ(calls.unconfirmed_by(), (std::set<int>{1}));
  EXPECT_TRUE(calls.confirm(9, 1));
  EXPECT_EQ(calls.oldest_unconfirmed(), FailedCalls::kNone);
}

// So each of two ranks tells the other one once, whoever of them counts on it.
TEST(FailedCalls, OneThatHasNotBeenToldIsToldOnce) {
  FailedCalls calls;
  calls.add(7, kWhy, {1});
  EXPECT_FALSE(calls.confirm(7, 3));
  EXPECT_TRUE(calls.confirm(7, 3));
  EXPECT_TRUE(calls.confirm(8, 3)) << "nothing is known of it";
}

TEST(FailedCalls, AreForgottenWhenAllHaveConfirmed) {
  FailedCalls calls;
  calls.add(7, kWhy, {});
  calls.add(8, kWhy, {1});
  calls.add(2000, kWhy, {});
  calls.prune(100);
  EXPECT_NE(calls.find(7), nullptr);
  EXPECT_FALSE(calls.is_forgotten(7, 100));
  EXPECT_FALSE(calls.is_forgotten(6, 100)) << "it may still fail";
  calls.prune(1000);
  EXPECT_EQ(calls.find(7), nullptr);
  EXPECT_TRUE(calls.is_forgotten(7, 1000));
  EXPECT_NE(calls.find(8), nullptr) << "a rank has not confirmed it";
  EXPECT_FALSE(calls.is_forgotten(8, 1000));
  std::vector<uint64_t> numbers;
  calls.for_each([&](uint64_t number) { numbers.push_back(number); });
  EXPECT_EQ(numbers, (std::vector<uint64_t>{8, 2000})) << "one that this rank has not begun yet";
}

}  // namespace
}  // namespace q7x2
