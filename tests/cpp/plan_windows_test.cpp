// Plans over several slices: if one slice completes, any number of slices does, whatever the
// windows, and the window bounds what is staged. The proof is in plan/ir/dag_window.h.
#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "fabric/fabric.h"
#include "plan/algorithms/generators.h"
#include "plan/check/checker.h"
#include "plan/ir/dag_window.h"
#include "plan/ir/plan.h"
#include "plan/ir/schedule.h"

namespace q7x2 {
namespace {

using Random = std::mt19937;

size_t below(Random& random, size_t end) {
  return std::uniform_int_distribution<size_t>(0, end - 1)(random);
}

// Runs all ranks in one thread, in any order. A send completes when it is received. A place that
// staged something is used again when all ranks have completed its slice, at the earliest.
class Slices {
 public:
  Slices(const std::vector<Plan>& plans, size_t num_slices, const std::vector<size_t>& windows,
         Random& random)
      : plans_(plans), windows_(windows), random_(random) {
    for (size_t rank = 0; rank < plans.size(); ++rank) {
      dags_.emplace_back(plans[rank], num_slices, windows[rank]);
    }
  }

  /// False: the ranks wait for each other for ever.
  bool run() {
    std::vector<size_t> ranks(plans_.size());
    for (size_t rank = 0; rank < ranks.size(); ++rank) ranks[rank] = rank;
    for (bool any = true; any;) {
      any = false;
      std::ranges::shuffle(ranks, random_);
      for (const size_t rank : ranks) any |= turn(rank);
    }
    return std::ranges::all_of(dags_, &DagWindow::done);
  }

 private:
  using Message = std::tuple<size_t, size_t, size_t, uint16_t>;  // from, to, slice, id

  size_t done_everywhere() const {
    return std::ranges::min_element(dags_, {}, &DagWindow::slices_done)->slices_done();
  }

  /// Does a few of the things that the rank could do.
  bool turn(size_t rank) {
    DagWindow& dag = dags_[rank];
    bool any = false;
    if (dag.can_admit() && dag.admitted() < done_everywhere() + windows_[rank]) {
      dag.admit();
      any = true;
      EXPECT_LE(dag.admitted() - done_everywhere(), windows_[rank])
          << "slices whose staging is held";
    }
    for (size_t i = 1 + below(random_, 4); i > 0; --i) {
      const auto step = dag.next();
      if (!step) break;
      any = true;
      start(rank, *step);
    }
    return any;
  }

  void start(size_t rank, DagWindow::Step step) {
    const Op& op = plans_[rank].ops[step.op];
    if (op.kind == OpKind::kCopy || op.kind == OpKind::kReduce) {
      dags_[rank].complete(step);
      return;
    }
    const auto peer = static_cast<size_t>(op.peer);
    const size_t slice = dags_[rank].slice_at(step.place);
    const bool is_send = op.kind == OpKind::kSend;
    const Message message{is_send ? rank : peer, is_send ? peer : rank, slice, op.message};
    const auto [other, is_first] = waiting_.try_emplace(message, step);
    if (is_first) return;
    dags_[peer].complete(other->second);
    dags_[rank].complete(step);
    waiting_.erase(other);
  }

  const std::vector<Plan>& plans_;
  const std::vector<size_t>& windows_;
  Random& random_;
  std::vector<DagWindow> dags_;
  std::map<Message, DagWindow::Step> waiting_;  // the end that came first
};

bool completes(const std::vector<Plan>& plans, size_t slices, const std::vector<size_t>& windows,
               Random& random) {
  return Slices(plans, slices, windows, random).run();
}

// Equal windows as the planner chooses them, and windows that differ: staging may be short on one
// rank.
std::vector<std::vector<size_t>> windows_of(size_t ranks, Random& random) {
  std::vector<std::vector<size_t>> all;
  for (const size_t window : {1U, 2U, 4U}) all.emplace_back(ranks, window);
  std::vector<size_t>& mixed = all.emplace_back();
  for (size_t rank = 0; rank < ranks; ++rank) mixed.push_back(1 + below(random, 4));
  return all;
}

TEST(PlanWindows, EveryGeneratorCompletesManySlices) {
  Random random(1);
  for (const Generator& generator : generators()) {
    for (const int n : {2, 3, 4, 7}) {
      const Fabric fabric = Fabric::uniform(n, 1, 1e9);
      ScheduleRequest request{generator.collective, n, 1, &fabric};
      if (!generator.applies(request)) continue;
      if (generator.parameters != nullptr) request.parameter = generator.parameters(request).back();
      const std::vector<Plan> plans = generator.generate(request).project_all();
      for (const auto& windows : windows_of(plans.size(), random)) {
        EXPECT_TRUE(completes(plans, 9, windows, random))
            << generator.name << " of " << n << " ranks, window " << windows[0];
      }
    }
  }
}

// Messages between ranks at random. Each op waits for a few of its rank's ops that were added
// before it. `disorder`: an op may be added to its rank before others that it should come after, so
// that ranks may wait for each other.
std::vector<Plan> random_plans(Random& random, size_t disorder) {
  const size_t ranks = 2 + below(random, 4);
  struct Half {
    OpKind kind;
    int peer;
    int id;
  };
  std::vector<std::vector<Half>> halves(ranks);
  const size_t messages = 1 + below(random, 12);
  const auto insert = [&](size_t rank, Half half) {
    auto& all = halves[rank];
    const size_t back = std::min(all.size(), disorder == 0 ? 0 : below(random, disorder + 1));
    all.insert(all.end() - static_cast<std::ptrdiff_t>(back), half);
  };
  for (size_t id = 0; id < messages; ++id) {
    const size_t from = below(random, ranks);
    const size_t to = (from + 1 + below(random, ranks - 1)) % ranks;
    insert(from, {OpKind::kSend, static_cast<int>(to), static_cast<int>(id)});
    insert(to, {OpKind::kRecv, static_cast<int>(from), static_cast<int>(id)});
  }
  std::vector<Plan> plans;
  for (size_t rank = 0; rank < ranks; ++rank) {
    PlanBuilder b(Schedule({Collective::kBarrier, static_cast<int>(ranks)}, "random")
                      .header(static_cast<int>(rank)));
    for (uint32_t op = 0; op < halves[rank].size(); ++op) {
      std::vector<uint32_t> after;
      for (size_t i = below(random, 3); i > 0 && op > 0; --i) {
        after.push_back(static_cast<uint32_t>(below(random, op)));
      }
      const Half& half = halves[rank][op];
      if (half.kind == OpKind::kSend) {
        b.send(half.peer, Block::input(0), after, {}, half.id);
      } else {
        b.recv(half.peer, Block::scratch(static_cast<int>(op)), after, Block::input(0), half.id);
      }
    }
    plans.push_back(b.build());
  }
  return plans;
}

TEST(PlanWindows, ManySlicesCompleteWhereOneDoes) {
  Random random(2);
  int stuck = 0;
  constexpr int kRounds = 2000;
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<Plan> plans = random_plans(random, below(random, 4));
    const bool one = completes(plans, 1, std::vector<size_t>(plans.size(), 1), random);
    stuck += one ? 0 : 1;
    for (const auto& windows : windows_of(plans.size(), random)) {
      for (const size_t slices : {3U, 10U}) {
        ASSERT_EQ(completes(plans, slices, windows, random), one)
            << "round " << round << ", " << slices << " slices, window " << windows[0];
      }
    }
  }
  EXPECT_GT(stuck, kRounds / 20) << "both kinds of Plans are wanted";
  EXPECT_LT(stuck, kRounds / 2);
}

// What the checker says of one slice is what many slices do.
TEST(PlanWindows, TheCheckerFindsThoseThatDoNotComplete) {
  Random random(3);
  int stuck = 0;
  for (int round = 0; round < 500; ++round) {
    const std::vector<Plan> plans = random_plans(random, below(random, 4));
    std::string complaint;
    try {
      check_plans(plans);
    } catch (const Error& error) {
      complaint = error.what();
    }
    const bool is_stuck = complaint.find("deadlock") != std::string::npos;
    const std::vector<size_t> windows(plans.size(), 1 + below(random, 4));
    // Found before the run. Whether it is a barrier is found after it.
    if (complaint.find("scratch blocks") != std::string::npos) continue;
    stuck += is_stuck ? 1 : 0;
    EXPECT_EQ(!completes(plans, 5, windows, random), is_stuck) << complaint;
  }
  EXPECT_GT(stuck, 5);
}

}  // namespace
}  // namespace q7x2
