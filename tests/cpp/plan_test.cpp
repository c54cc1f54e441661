// PlanBuilder, the division of slices into parts, and Plans as text.
#include "plan/ir/plan.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "plan/ir/schedule.h"

namespace q7x2 {
namespace {

Plan header(std::vector<uint32_t> weights = {1}) {
  return Schedule({Collective::kAllReduce, 3}, "test", std::move(weights)).header(1);
}

TEST(PlanBuilder, GivesOutMessageIdsByPeerAndDirection) {
  PlanBuilder b(header());
  b.send(0, Block::input(0));
  b.send(2, Block::input(0));
  b.send(0, Block::input(0));
  b.recv(0, Block::scratch(0), {}, Block::input(0));
  const Plan plan = b.build();
  EXPECT_EQ(plan.ops[0].message, 0);
  EXPECT_EQ(plan.ops[1].message, 0);
  EXPECT_EQ(plan.ops[2].message, 1);
  EXPECT_EQ(plan.ops[3].message, 0);
}

TEST(PlanBuilder, SortsOutSuccessorsAndScratch) {
  PlanBuilder b(header({1, 1, 1}));
  const auto first = b.recv(0, Block::scratch(4), {}, Block::input(2));
  const auto second = b.recv(2, Block::scratch(1), {}, Block::input(2));
  const auto sum = b.reduce({{Block::scratch(4), Block::scratch(1), Block::input(2)}},
                            Block::output(2), true, {{second, first, second}});
  b.send(0, Block::output(2), {{sum}});
  const Plan plan = b.build();
  EXPECT_EQ(plan.num_scratch, 5);
  EXPECT_EQ(plan.ops[2].num_dependencies, 2U) << "a dependency that is named twice counts once";
  ASSERT_EQ(plan.successors_of(plan.ops[0]).size(), 1U);
  EXPECT_EQ(plan.successors_of(plan.ops[0])[0], sum);
  EXPECT_EQ(plan.successors_of(plan.ops[2]).size(), 1U);
  EXPECT_TRUE(plan.successors_of(plan.ops[3]).empty());
  EXPECT_EQ(plan.sources_of(plan.ops[2]).size(), 3U);
  EXPECT_EQ(plan.ops[2].length_of, Block::output(2));
  EXPECT_EQ(to_string(plan),
            "all_reduce test, rank 1 of 3, scratch 5, parts 1 1 1\n"
            "  0: recv #0 from 0 -> scratch[4], length of in[2]\n"
            "  1: recv #0 from 2 -> scratch[1], length of in[2]\n"
            "  2: final reduce -> out[2] from scratch[4] scratch[1] in[2], length of out[2], after "
            "0 1\n"
            "  3: send #0 to 0 from out[2], length of out[2], after 2\n");
}

TEST(PlanBuilder, RefusesWhatCannotBe) {
  const auto refuses = [](auto add) {
    PlanBuilder b(header());
    EXPECT_THROW(add(b), Error);
  };
  refuses([](PlanBuilder& b) { b.send(1, Block::input(0)); });
  refuses([](PlanBuilder& b) { b.send(3, Block::input(0)); });
  refuses([](PlanBuilder& b) { b.recv(-1, Block::output(0)); });
  refuses([](PlanBuilder& b) { b.send(0, Block::scratch(0)); });
  refuses([](PlanBuilder& b) { b.send(0, Block::input(0), {{0U}}); });
}

Plan plan_of_parts(std::vector<uint32_t> weights) {
  PlanBuilder builder(header(std::move(weights)));
  return builder.build();
}

TEST(PartBegin, DividesInProportionAndLosesNothing) {
  const Plan plan = plan_of_parts({1, 2, 3});
  for (size_t elements : {0, 1, 2, 5, 6, 7, 100, 1001}) {
    EXPECT_EQ(plan.part_begin(elements, 0), 0U);
    EXPECT_EQ(plan.part_begin(elements, 1), elements / 6);
    EXPECT_EQ(plan.part_begin(elements, 2), elements * 3 / 6);
    EXPECT_EQ(plan.part_begin(elements, 3), elements);
  }
}

TEST(PartBegin, DoesNotOverflow) {
  const uint32_t heavy = std::numeric_limits<uint32_t>::max() / 4;
  const Plan plan = plan_of_parts({heavy, heavy, heavy, heavy});
  const size_t elements = (size_t{1} << 62) + 3;
  EXPECT_EQ(plan.part_begin(elements, 2), elements / 2);
  EXPECT_EQ(plan.part_begin(elements, 4), elements);
}

}  // namespace
}  // namespace q7x2
