#include "plan/check/checker.h"

#include "base/error.h"
#include "plan/check/checker_group.h"
#include "plan/check/checker_results.h"
#include "plan/check/checker_run.h"
#include "plan/check/checker_structure.h"
#include "plan/check/checker_values.h"

namespace q7x2 {

using checker::CheckedGroup;

void check_plans(std::span<const Plan> plans, const Contract& contract) {
  const CheckedGroup group(plans, contract);
  for (int rank = 0; rank < group.size(); ++rank) checker::check_structure(group, rank);
  const checker::Matches matches = checker::match_messages(group);
  checker::Expressions expressions(group.size());
  checker::SymbolicRun run(group, matches, expressions);
  run.run();
  checker::check_results(group, expressions, run);
}

void check_plans(std::span<const Plan> plans) {
  if (plans.empty()) throw Error(ErrorCode::kInternal, "no Plans to check");
  const Plan& first = plans.front();
  check_plans(plans, Contract::of({first.collective, first.world_size, first.root}));
}

void check_schedule(const Schedule& schedule) {
  check_plans(schedule.project_all(), schedule.contract());
}

}  // namespace q7x2
