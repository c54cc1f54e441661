// The checker finds every wrong flag, id or block in the Plans of the generators, coded or not.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "checked_plans.h"
#include "fabric/fabric.h"
#include "plan/algorithms/generators.h"
#include "plan/ir/coding_pass.h"
#include "plan/ir/plan.h"
#include "plan/ir/schedule.h"

namespace q7x2 {
namespace {

using test::complaint;
using test::generate;
using test::schedule;

// The Plans of a coded all-reduce of two ranks, by SRA: each encodes a part, folds the other and
// encodes the sum.
std::vector<Plan> coded_plans() {
  const Schedule dense = schedule("sra", Collective::kAllReduce, 2);
  return code(dense, {Edges::kAll, 2, nullptr}).project_all();
}

// The first op of rank 0 for which `is_it` holds.
template <typename IsIt>
Op& find_op(std::vector<Plan>& plans, IsIt is_it) {
  const auto found = std::ranges::find_if(plans[0].ops, is_it);
  if (found == plans[0].ops.end()) throw Error(ErrorCode::kInternal, "no such op");
  return *found;
}

TEST(Checker, ResidualsThatAreLeftOutOrTakenTwice) {
  EXPECT_EQ(complaint(coded_plans()), "");

  auto plans = coded_plans();
  find_op(plans, [](const Op& op) {
    return op.kind == OpKind::kCopy && op.takes_residual;
  }).takes_residual = false;
  EXPECT_COMPLAINT(plans, "encodes, but leaves the residual out");

  plans = coded_plans();
  find_op(plans, [](const Op& op) { return op.kind == OpKind::kReduce; }).takes_residual = false;
  EXPECT_COMPLAINT(plans, "has the residual of rank 0 0 times");

  plans =
      code(schedule("direct", Collective::kAllReduce, 2), {Edges::kNone, 2, nullptr}).project_all();
  EXPECT_EQ(complaint(plans), "");
  for (Plan& plan : plans) {
    std::ranges::find(plan.ops, OpKind::kReduce, &Op::kind)->takes_residual = true;
  }
  EXPECT_COMPLAINT(plans, "has the residual of rank 0");

  plans = coded_plans();
  find_op(plans, [](const Op& op) { return op.kind == OpKind::kSend; }).takes_residual = true;
  EXPECT_COMPLAINT(plans, "takes a residual that it cannot have");

  plans = coded_plans();
  for (Plan& plan : plans) plan.takes_residuals = false;
  EXPECT_COMPLAINT(plans, "takes a residual that it cannot have");
}

TEST(Checker, CodedBlocksThatAreCopied) {
  auto plans = coded_plans();
  Plan& plan = plans[0];
  const Op& decode =
      find_op(plans, [](const Op& op) { return op.kind == OpKind::kCopy && !op.takes_residual; });
  plan.ops[static_cast<size_t>(&decode - plan.ops.data())].destination =
      Block::coded(plan.num_coded++);
  EXPECT_COMPLAINT(plans, "encodes, but leaves the residual out");
  find_op(plans, [](const Op& op) {
    return op.kind == OpKind::kCopy && !op.takes_residual && op.destination.is_coded();
  }).takes_residual = true;
  EXPECT_COMPLAINT(plans, "copies a coded block to a coded block");
}

TEST(Checker, RanksThatCodeOtherEdges) {
  auto plans = coded_plans();
  plans[1].edges = Edges::kHosts;
  EXPECT_COMPLAINT(plans, "is coded otherwise than rank 0's");
}

TEST(Checker, PlansOfDifferentRequests) {
  auto plans = generate("ring", Collective::kAllReduce, 3);
  const auto others = generate("sra", Collective::kAllReduce, 3);
  EXPECT_COMPLAINT((std::vector<Plan>{plans[0], others[1], plans[2]}), "of another algorithm");
  EXPECT_COMPLAINT((std::vector<Plan>{plans[0], plans[2], plans[1]}), "is made for rank 2");
  EXPECT_COMPLAINT((std::vector<Plan>{plans[0], plans[1]}), "is made for 3 ranks, checked with 2");
  plans[1].part_weights = {1, 2, 1};
  EXPECT_COMPLAINT(plans, "other part weights");
  EXPECT_COMPLAINT(std::vector<Plan>{}, "no Plans");
}

// One wrong flag, id or block in any op never passes.
void expect_all_mutations_caught(std::vector<Plan> plans) {
  const auto n = static_cast<int>(plans.size());
  ASSERT_EQ(complaint(plans), "");
  for (Plan& plan : plans) {
    for (size_t id = 0; id < plan.ops.size(); ++id) {
      SCOPED_TRACE("rank " + std::to_string(plan.rank) + ", op " + std::to_string(id) + "\n" +
                   to_string(plan));
      const Op original = plan.ops[id];
      Op& op = plan.ops[id];
      op.is_final = !op.is_final;
      EXPECT_NE(complaint(plans), "") << "final flag";
      op = original;
      op.takes_residual = !op.takes_residual;
      EXPECT_NE(complaint(plans), "") << "residual";
      op = original;
      if (op.kind == OpKind::kSend || op.kind == OpKind::kRecv) {
        op.message = static_cast<uint16_t>(op.message + 1);
        EXPECT_NE(complaint(plans), "") << "message id";
        op = original;
        op.peer = (op.peer + 1) % n;
        EXPECT_NE(complaint(plans), "") << "peer";
        op = original;
      }
      if (op.kind == OpKind::kReduce) {
        op.num_sources -= 1;
        EXPECT_NE(complaint(plans), "") << "operand left out";
        op = original;
      }
      if (op.kind != OpKind::kSend) {
        op.destination.index = static_cast<uint16_t>(op.destination.index + 1);
        // A barrier's bytes mean nothing, so it may receive them wherever there is room.
        if (plan.collective != Collective::kBarrier) {
          EXPECT_NE(complaint(plans), "") << "destination";
        }
        op = original;
      }
    }
  }
}

TEST(Checker, EveryMutationIsCaught) {
  for (const Generator& generator : generators()) {
    for (int n : {2, 3, 6}) {
      Fabric fabric = Fabric::uniform(2, n, 1e9);
      fabric.host_of.resize(static_cast<size_t>(n));
      for (int rank = 0; rank < n; ++rank) fabric.host_of[static_cast<size_t>(rank)] = rank % 2;
      ScheduleRequest request{generator.collective, n, 1, &fabric};
      if (!generator.applies(request)) continue;
      if (generator.parameters != nullptr) request.parameter = generator.parameters(request).back();
      const Schedule dense = generator.generate(request);
      SCOPED_TRACE(generator.name + " " + to_string(generator.collective));
      expect_all_mutations_caught(dense.project_all());
      for (const Edges each : {Edges::kHosts, Edges::kAll}) {
        const EdgeCoding edges(each, n, &fabric);
        if (generator.codable == Codable::kNever || !generator.may_code(edges)) continue;
        SCOPED_TRACE(to_string(each));
        expect_all_mutations_caught(code(dense, edges).project_all());
      }
    }
  }
}

}  // namespace
}  // namespace q7x2
