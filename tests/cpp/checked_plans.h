// Plans with deliberate faults, and the checker's complaints about them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "plan/algorithms/generators.h"
#include "plan/check/checker.h"
#include "plan/ir/plan.h"
#include "plan/ir/schedule.h"

namespace q7x2::test {

using OpId = PlanBuilder::OpId;

inline const Block kBuffer = Block::output(0);

// The message of the Error that the checker throws; empty if it finds no fault.
inline std::string complaint(const std::vector<Plan>& plans) {
  try {
    check_plans(plans);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    return error.what();
  }
  return "";
}

#define EXPECT_COMPLAINT(plans, part)                                               \
  do {                                                                              \
    const std::string text = ::q7x2::test::complaint(plans);                        \
    EXPECT_NE(text.find(part), std::string::npos) << "complaint: '" << text << "'"; \
  } while (false)

inline Schedule schedule(const std::string& name, Collective op, int n, int root = -1) {
  for (const Generator& generator : generators()) {
    if (generator.name == name && generator.collective == op)
      return generator.generate({op, n, root});
  }
  throw Error(ErrorCode::kInternal, "no generator " + name);
}

inline std::vector<Plan> generate(const std::string& name, Collective op, int n, int root = -1) {
  return schedule(name, op, n, root).project_all();
}

// Builds the Plans of `n` ranks by hand.
inline std::vector<Plan> build(Collective op, int n,
                               const std::function<void(PlanBuilder&, int rank)>& add_ops,
                               int root = -1) {
  std::vector<Plan> plans;
  for (int rank = 0; rank < n; ++rank) {
    PlanBuilder b(Schedule({op, n, root}, "handmade").header(rank));
    add_ops(b, rank);
    plans.push_back(b.build());
  }
  return plans;
}

// A correct all-reduce of two ranks, to which tests add faults.
inline void exchange_and_fold(PlanBuilder& b, int rank) {
  const OpId sent = b.send(1 - rank, kBuffer);
  const OpId received = b.recv(1 - rank, Block::scratch(0), {}, kBuffer);
  const Block lower = rank == 0 ? kBuffer : Block::scratch(0);
  const Block upper = rank == 0 ? Block::scratch(0) : kBuffer;
  b.reduce({{lower, upper}}, kBuffer, true, {{sent, received}});
}

}  // namespace q7x2::test
