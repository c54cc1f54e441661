// Calls that change their algorithm on the way: right, and alike on all ranks.
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "comm.h"
#include "ranks.h"

namespace q7x2 {
namespace {

using test::Buffer;
using test::buffer;
using test::Comm;
using test::Rank;
using test::run_ranks;

constexpr size_t kCount = 5000;

int32_t number(int rank, int call, size_t index) {
  return rank * 1000 + call * 7 + static_cast<int32_t>(index % 97);
}

Buffer<int32_t> numbers(int rank, int call) {
  auto data = buffer<int32_t>(kCount);
  for (size_t i = 0; i < kCount; ++i) (*data)[i] = number(rank, call, i);
  return data;
}

void expect_sums(const Buffer<int32_t>& data, int ranks, int call) {
  for (size_t i = 0; i < kCount; ++i) {
    int32_t sum = 0;
    for (int rank = 0; rank < ranks; ++rank) sum += number(rank, call, i);
    ASSERT_EQ((*data)[i], sum) << "call " << call << ", element " << i;
  }
}

std::string text_of(const PlanCache::Record& record) {
  std::string text = std::to_string(record.calls);
  for (const Proposal& each : record.revisions.back().proposals) text += " " + each.algorithm;
  for (const Refinement::Event& event : record.revisions.back().events) {
    text += "\n" + std::to_string(event.call);
    for (const size_t choice : event.choices) text += " " + std::to_string(choice);
    for (const auto& figure : event.figures) text += " " + std::to_string(figure.nanoseconds);
  }
  return text;
}

void expect_one_history(Rank& rank, Comm& comm) {
  const std::vector<PlanCache::Record> records = comm.plans().records();
  ASSERT_EQ(records.size(), 1U);
  rank.put("history", text_of(records[0]));
  EXPECT_EQ(rank.get(0, "history"), text_of(records[0]));
  EXPECT_GE(records[0].revisions.back().events.size(), 3U)
      << "the first choice, all choices, and a decision";
}

TEST(RefinedCalls, OneAfterTheOther) {
  run_ranks(4, [](Rank& rank) {
    Comm comm(rank.group());
    for (int call = 0; call < 200; ++call) {
      rank.at("call " + std::to_string(call));
      const auto data = numbers(rank.rank, call);
      comm.succeed(*comm.all_reduce(data));
      expect_sums(data, comm.size(), call);
    }
    expect_one_history(rank, comm);
    EXPECT_EQ(comm.plans().records()[0].revisions.back().events.back().choices.size(), 1U);
  });
}

// Reviews are submitted before the outcome of earlier ones is known, on some ranks even before the
// first choice is.
TEST(RefinedCalls, ManyAhead) {
  run_ranks(3, [](Rank& rank) {
    Comm comm(rank.group());
    for (int begin = 0; begin < 300; begin += 100) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20 * rank.rank));
      std::vector<Buffer<int32_t>> data;
      std::vector<std::shared_ptr<CollectiveTask>> tasks;
      for (int call = begin; call < begin + 100; ++call) {
        data.push_back(numbers(rank.rank, call));
        tasks.push_back(comm.all_reduce(data.back()));
      }
      for (int i = 0; i < 100; ++i) {
        comm.succeed(*tasks[static_cast<size_t>(i)]);
        expect_sums(data[static_cast<size_t>(i)], comm.size(), begin + i);
      }
    }
    expect_one_history(rank, comm);
  });
}

// Where the ranks disagree about a call that a review precedes, the error names the call.
TEST(RefinedCalls, DisagreementAtAReview) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    for (int call = 0; call < 24; ++call) {
      comm.succeed(*comm.all_reduce(numbers(rank.rank, call)));
    }
    const auto task = comm.all_reduce(buffer<int32_t>(kCount - static_cast<size_t>(rank.rank)));
    const Error error = comm.failure(*task);
    EXPECT_EQ(error.code(), ErrorCode::kMismatch) << error.what();
    EXPECT_NE(std::string(error.what()).find("all_reduce"), std::string::npos) << error.what();
  });
}

}  // namespace
}  // namespace q7x2
