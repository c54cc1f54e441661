// What DagWindow promises, for DAGs, windows and completion orders at random.
#include "plan/ir/dag_window.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "plan/ir/plan.h"
#include "plan/ir/schedule.h"

namespace q7x2 {
namespace {

using Random = std::mt19937;

size_t below(Random& random, size_t end) {
  return std::uniform_int_distribution<size_t>(0, end - 1)(random);
}

// Copies in any number, each after some of those before it.
Plan random_dag(Random& random, size_t ops) {
  PlanBuilder b(Schedule({Collective::kBarrier, 1}, "random").header(0));
  for (uint32_t op = 0; op < ops; ++op) {
    std::set<uint32_t> after;
    for (size_t i = below(random, 4); i > 0 && op > 0; --i) {
      after.insert(static_cast<uint32_t>(below(random, op)));
    }
    b.copy(Block::input(0), Block::scratch(0), std::vector<uint32_t>(after.begin(), after.end()));
  }
  return b.build();
}

// Takes and completes steps in any order, admits whenever it likes, and keeps books of its own.
class Driver {
 public:
  Driver(const Plan& plan, size_t num_slices, size_t window, Random& random)
      : plan_(plan),
        window_(window),
        random_(random),
        dag_(plan, num_slices, window),
        complete_(num_slices, std::vector<bool>(plan.ops.size())),
        before_(plan.ops.size()) {
    for (uint32_t op = 0; op < plan.ops.size(); ++op) {
      for (const uint32_t next : plan.successors_of(plan.ops[op])) before_[next].push_back(op);
    }
  }

  void run() {
    while (!dag_.done()) {
      const bool is_stuck = running_.empty() && !take();
      ASSERT_TRUE(!is_stuck || dag_.can_admit()) << "nothing runs, nothing may be admitted";
      if (dag_.can_admit() && (is_stuck || below(random_, 3) == 0)) admit();
      if (below(random_, 2) == 0) take();
      if (!running_.empty() && below(random_, 2) == 0) complete();
      if (testing::Test::HasFatalFailure()) return;
    }
    EXPECT_FALSE(dag_.can_admit());
    EXPECT_FALSE(dag_.next());
    EXPECT_EQ(dag_.slices_done(), complete_.size());
    for (const auto& slice : complete_) EXPECT_EQ(std::ranges::count(slice, false), 0);
  }

 private:
  void admit() {
    const size_t slice = dag_.admitted();
    const uint32_t place = dag_.place_of(slice);
    dag_.admit();
    ASSERT_EQ(dag_.slice_at(place), slice);
    ASSERT_EQ(dag_.admitted(), slice + 1);
    ASSERT_LE(dag_.admitted() - dag_.slices_done(), window_);
  }

  bool take() {
    const auto step = dag_.next();
    if (!step) return false;
    const size_t slice = dag_.slice_at(step->place);
    EXPECT_TRUE(started_.insert({slice, step->op}).second) << "op " << step->op << " runs twice";
    for (const uint32_t before : before_[step->op]) {
      EXPECT_TRUE(complete_[slice][before]) << "op " << step->op << " runs before " << before;
    }
    running_.push_back(*step);
    return true;
  }

  void complete() {
    std::swap(running_[below(random_, running_.size())], running_.back());
    const DagWindow::Step step = running_.back();
    running_.pop_back();
    const size_t slice = dag_.slice_at(step.place);
    complete_[slice][step.op] = true;
    const bool is_last = std::ranges::count(complete_[slice], false) == 0;
    ASSERT_EQ(dag_.complete(step), is_last);
    const auto first_left = std::ranges::find_if(
        complete_, [](const auto& ops) { return std::ranges::count(ops, false) > 0; });
    ASSERT_EQ(dag_.slices_done(), static_cast<size_t>(first_left - complete_.begin()));
  }

  const Plan& plan_;
  const size_t window_;
  Random& random_;
  DagWindow dag_;
  std::vector<std::vector<bool>> complete_;        // [slice][op]
  std::vector<std::vector<uint32_t>> before_;      // by op
  std::set<std::pair<size_t, uint32_t>> started_;  // (slice, op)
  std::vector<DagWindow::Step> running_;
};

TEST(DagWindow, RunsEachOpOncePerSliceAfterItsDependencies) {
  Random random(1);
  for (size_t window = 1; window <= 16; ++window) {
    for (int round = 0; round < 20; ++round) {
      const Plan plan = random_dag(random, 1 + below(random, 20));
      const size_t slices = 1 + below(random, 40);
      SCOPED_TRACE("window " + std::to_string(window) + ", " + std::to_string(slices) +
                   " slices of\n" + to_string(plan));
      Driver(plan, slices, window, random).run();
      if (HasFailure()) return;
    }
  }
}

TEST(DagWindow, ReturnsOpsInTheOrderInWhichTheyBecomeReady) {
  PlanBuilder b(Schedule({Collective::kBarrier, 1}, "chain and one more").header(0));
  const auto first = b.copy(Block::input(0), Block::scratch(0));
  b.copy(Block::scratch(0), Block::scratch(1), {{first}}, Block::input(0));
  b.copy(Block::input(0), Block::scratch(2));
  const Plan plan = b.build();
  DagWindow dag(plan, 2, 2);
  dag.admit();
  dag.admit();
  using Step = DagWindow::Step;
  EXPECT_EQ(dag.next(), (Step{0, 0}));
  EXPECT_FALSE(dag.complete({0, 0}));
  EXPECT_EQ(dag.next(), (Step{0, 2}));
  EXPECT_EQ(dag.next(), (Step{1, 0}));
  EXPECT_EQ(dag.next(), (Step{1, 2}));
  EXPECT_EQ(dag.next(), (Step{0, 1}));
  EXPECT_FALSE(dag.next());
}

// A later slice may be complete before an earlier one: its place is not free, nor is it done.
TEST(DagWindow, SlicesAreDoneInOrder) {
  PlanBuilder b(Schedule({Collective::kBarrier, 1}, "one op").header(0));
  b.copy(Block::input(0), Block::scratch(0));
  const Plan plan = b.build();
  DagWindow dag(plan, 4, 2);
  while (dag.can_admit()) dag.admit();
  EXPECT_EQ(dag.admitted(), 2U);
  const auto first = dag.next();
  const auto second = dag.next();
  EXPECT_TRUE(dag.complete(*second));
  EXPECT_EQ(dag.slices_done(), 0U);
  EXPECT_FALSE(dag.can_admit());
  EXPECT_TRUE(dag.complete(*first));
  EXPECT_EQ(dag.slices_done(), 2U);
  EXPECT_TRUE(dag.can_admit());
}

TEST(DagWindow, NoSlicesAndNoOpsAreDoneAtOnce) {
  EXPECT_TRUE(DagWindow().done());
  const Plan plan = PlanBuilder(Schedule({Collective::kBarrier, 1}, "empty").header(0)).build();
  EXPECT_TRUE(DagWindow(plan, 0, 4).done());
  DagWindow dag(plan, 3, 1);
  while (dag.can_admit()) dag.admit();
  EXPECT_TRUE(dag.done());
  EXPECT_FALSE(dag.next());
}

}  // namespace
}  // namespace q7x2
