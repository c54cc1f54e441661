// What a call is planned with.
#include "executor/collective/plan_call.h"

#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"

namespace q7x2 {
namespace {

constexpr int kRanks = 4;

CollectiveCall all_reduce(std::vector<float>& data) {
  CollectiveCall call;
  call.collective = Collective::kAllReduce;
  call.input =
      call.output = {{reinterpret_cast<std::byte*>(data.data()), data.size() * sizeof(float)}};
  call.dtype = DType::kFloat32;
  return call;
}

std::shared_ptr<const Fabric> network() {
  return std::make_shared<const Fabric>(Fabric::uniform(kRanks, 1, 1e9));
}

std::shared_ptr<PlanCache> plans(int rank) {
  return std::make_shared<PlanCache>(std::make_shared<Planner>(rank, network(), ""), rank, kRanks,
                                     "a test");
}

TEST(PlanCall, HandsThePageOverWithTheCall) {
  std::vector<float> data(1000);
  const CollectiveCall call = all_reduce(data);
  const auto first = plans(0);
  const PlannedCall planned = plan_call(call, first, 0, kRanks);
  EXPECT_EQ(planned.call.input[0].data, call.input[0].data);
  EXPECT_TRUE(planned.entry->is_settled());
  EXPECT_EQ(planned.entry, plan_call(call, first, 0, kRanks).entry);
  EXPECT_FALSE(planned.counting);
  EXPECT_FALSE(plan_call(call, plans(1), 1, kRanks).entry->is_settled()) << "rank 0 chooses";
}

TEST(PlanCall, RefusesWhatTheCheckRefuses) {
  CollectiveCall call;
  call.collective = Collective::kAllReduce;
  EXPECT_THROW(plan_call(call, plans(0), 0, kRanks), Error);
}

// What rank 0's planner refuses, the others refuse too, in place of waiting for its choice.
TEST(PlanCall, EveryRankRefusesWhatThePlannerRefuses) {
  std::vector<float> data(1000);
  CollectiveCall call = all_reduce(data);
  call.algorithms = "aggregator:3";
  for (const int rank : {0, 1}) EXPECT_THROW(plan_call(call, plans(rank), rank, kRanks), Error);
}

// A codec that balances the parts of an all-reduce counts what is sent before it, if there is
// anything to balance.
TEST(PlanCall, BalancedCallsHaveAChoiceForTheirCounts) {
  std::vector<float> many(1 << 20);
  CollectiveCall call = all_reduce(many);
  call.algorithms = "sra";
  for (const int rank : {0, 1}) {
    for (const char* name : {"topk:0.01", "topk:0.01:balanced"}) {
      call.coding.codec = Codec::make(name);
      const PlannedCall planned = plan_call(call, plans(rank), rank, kRanks);
      EXPECT_EQ(planned.counting != nullptr, call.coding.codec->spec().balanced);
      if (planned.counting) {
        EXPECT_EQ(planned.counting->choice().plan->num_coded, 0);
      }
    }
  }
  std::vector<float> few(16);
  CollectiveCall tiny = all_reduce(few);
  tiny.coding.codec = call.coding.codec;
  EXPECT_FALSE(plan_call(tiny, plans(0), 0, kRanks).counting);
}

}  // namespace
}  // namespace q7x2
