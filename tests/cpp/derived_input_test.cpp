// Calls whose input is derived from what an all-reduce has brought.
#include "executor/collective/derived_input.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "comm.h"
#include "executor/collective/collective.h"
#include "ranks.h"

namespace q7x2 {
namespace {

using test::Buffer;
using test::buffer;
using test::Comm;
using test::Rank;
using test::run_ranks;

/// Calls of one rank: the sum of tensors that are filled with a maximum over all ranks.
class Calls {
 public:
  explicit Calls(Rank& rank)
      : group_(rank.group()),
        comm_(group_),
        plans_(std::make_shared<PlanCache>(
            std::make_shared<Planner>(comm_.rank(), std::make_shared<Fabric>(comm_.fabric()), ""),
            comm_.rank(), comm_.size(), "a test")) {}

  Comm& comm() { return comm_; }

  std::shared_ptr<CollectiveTask> start(const Buffer<int32_t>& maximum, const Buffer<int32_t>& data,
                                        std::function<void()> derive) {
    auto task = CollectiveTask::make(group_, plan(*data, ReduceKind::kSum), data, test::kLong);
    task->set_prerequisite(
        std::make_shared<DerivedInput>(plan(*maximum, ReduceKind::kMax), std::move(derive)));
    group_->runtime().submit(task, /*caller_waits=*/false);
    return task;
  }

 private:
  PlannedCall plan(std::vector<int32_t>& memory, ReduceKind reduce) {
    CollectiveCall call;
    call.collective = Collective::kAllReduce;
    call.input = call.output = {test::region(memory)};
    call.dtype = DType::kInt32;
    call.reduce = reduce;
    return plan_call(std::move(call), plans_, comm_.rank(), comm_.size());
  }

  const std::shared_ptr<Group> group_;
  Comm comm_;
  const std::shared_ptr<PlanCache> plans_;
};

// Other collectives precede some of these calls: announcements and tuning rounds, of the call and
// of the all-reduce that precedes it.
TEST(DerivedInput, IsMadeOnceFromTheResultOfAllRanks) {
  for (const int ranks : {1, 3}) {
    SCOPED_TRACE(ranks);
    run_ranks(ranks, [](Rank& rank) {
      Calls calls(rank);
      const int size = calls.comm().size();
      for (int round = 0; round < 140; ++round) {
        const auto maximum = buffer<int32_t>(1, rank.rank + round);
        const auto data = buffer<int32_t>(round % 2 == 0 ? 5 : 40'000, -1);
        const auto derived = std::make_shared<int>(0);
        const auto task = calls.start(maximum, data, [=] {
          ++*derived;
          std::ranges::fill(*data, maximum->front());
        });
        calls.comm().succeed(*task);
        ASSERT_EQ(*derived, 1) << "round " << round;
        ASSERT_EQ(*data, *buffer<int32_t>(data->size(), size * (size - 1 + round)))
            << "round " << round;
      }
    });
  }
}

TEST(DerivedInput, WhatDerivingThrowsFailsThatCallAlone) {
  run_ranks(3, [](Rank& rank) {
    Calls calls(rank);
    const auto maximum = buffer<int32_t>(1, rank.rank);
    const auto data = buffer<int32_t>(1000, 1);
    const auto start = [&](bool fails) {
      return calls.start(maximum, data, [&rank, fails] {
        if (fails && rank.rank == 1) throw Error(ErrorCode::kInternal, "no luck", 1);
      });
    };
    calls.comm().succeed(*start(false));
    const Error error = calls.comm().failure(*start(true));
    EXPECT_NE(std::string(error.what()).find("no luck"), std::string::npos) << error.what();
    calls.comm().succeed(*start(false));
    EXPECT_FALSE(calls.comm().group().error());
    rank.barrier();
  });
}

}  // namespace
}  // namespace q7x2
