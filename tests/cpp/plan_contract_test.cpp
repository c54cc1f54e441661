// Contracts other than c10d's: ranks that do not contribute, that do not receive, and quorums.
#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "plan/check/checker.h"
#include "plan/ir/plan.h"
#include "plan/ir/schedule.h"

namespace q7x2 {
namespace {

using OpId = PlanBuilder::OpId;

const Block kBuffer = Block::output(0);

Schedule handmade(Collective op, int n, Contract contract, Schedule::Program program,
                  int root = -1) {
  Schedule schedule({op, n, root}, "handmade");
  schedule.set_contract(std::move(contract));
  schedule.set_program(std::move(program));
  return schedule;
}

std::string complaint(const Schedule& schedule) {
  try {
    check_schedule(schedule);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    return error.what();
  }
  return "";
}

#define EXPECT_COMPLAINT(schedule, part)                                            \
  do {                                                                              \
    const std::string text = complaint(schedule);                                   \
    EXPECT_NE(text.find(part), std::string::npos) << "complaint: '" << text << "'"; \
  } while (false)

// Rank `server` folds what the `workers` send, in scratch, and sends the result to `readers`.
Schedule::Program serve(int server, const std::vector<int>& workers,
                        const std::vector<int>& readers) {
  return [=](PlanBuilder& b, int rank) {
    std::vector<OpId> sent;
    if (std::ranges::count(workers, rank) > 0) sent.push_back(b.send(server, kBuffer));
    if (rank == server) {
      std::vector<Block> operands;
      std::vector<OpId> received;
      for (const int worker : workers) {
        operands.push_back(Block::scratch(static_cast<int>(operands.size())));
        received.push_back(b.recv(worker, operands.back(), {}, kBuffer));
      }
      const OpId sum = b.reduce(operands, operands.front(), true, received, kBuffer);
      for (const int reader : readers) b.send(reader, operands.front(), {{sum}}, kBuffer);
    }
    if (std::ranges::count(readers, rank) > 0) b.recv(server, kBuffer, sent);
  };
}

TEST(Contract, AServerThatContributesNothing) {
  const std::vector<int> workers{0, 1, 2};
  const auto program = serve(3, workers, workers);
  EXPECT_EQ(complaint(handmade(Collective::kAllReduce, 4, {workers, workers, 3}, program)), "");
  // By c10d's contract rank 3 contributes and receives.
  EXPECT_COMPLAINT(
      handmade(Collective::kAllReduce, 4, Contract::of({Collective::kAllReduce, 4, -1}), program),
      "is final without the contribution of rank 3");
}

TEST(Contract, ReceiversAreASubset) {
  const std::vector<int> all{0, 1, 2, 3};
  const std::vector<int> readers{0, 2};
  const auto program = serve(3, {0, 1, 2}, readers);
  EXPECT_EQ(complaint(handmade(Collective::kAllReduce, 4, {{0, 1, 2}, readers, 3}, program)), "");
  EXPECT_COMPLAINT(handmade(Collective::kAllReduce, 4, {{0, 1, 2}, {0, 1, 2}, 3}, program),
                   "rank 1 of 4: output part 0 lacks the contribution of rank 0");
  EXPECT_COMPLAINT(handmade(Collective::kAllReduce, 4, {{0, 1, 2}, {0}, 3}, program),
                   "rank 2 of 4: op 1 (recv #0 from 3 -> out[0], length of out[0]) overwrites the "
                   "buffer of a rank that receives nothing");
}

TEST(Contract, AQuorumThatIsMissed) {
  const std::vector<int> all{0, 1, 2, 3};
  const auto program = serve(3, {0, 1}, all);
  const auto with_quorum = [&](int quorum) {
    return handmade(Collective::kAllReduce, 5, {{0, 1, 2}, {0, 1, 2}, quorum},
                    serve(3, {0, 1}, {0, 1, 2}));
  };
  EXPECT_EQ(complaint(with_quorum(2)), "");
  EXPECT_COMPLAINT(with_quorum(3), "is final without the contribution of rank 2");
  const auto of_four =
      handmade(Collective::kAllReduce, 5, {all, {0, 1, 2}, 3}, serve(4, {0, 1}, {0, 1, 2}));
  EXPECT_COMPLAINT(of_four, "is final with 2 contributions, the quorum is 3");
}

TEST(Contract, InputThatDoesNotCount) {
  const auto program = serve(3, {0, 1, 2}, {0, 1});
  EXPECT_COMPLAINT(handmade(Collective::kAllReduce, 4, {{0, 1}, {0, 1}, 2}, program),
                   "folds the input of rank 2, which does not contribute");
}

TEST(Contract, GatheringFromSome) {
  const auto gather = [](PlanBuilder& b, int rank) {
    if (rank < 2) b.copy(Block::input(0), Block::output(rank));
    for (int other = 0; other < 3; ++other) {
      if (other == rank) continue;
      if (rank < 2) b.send(other, Block::input(0));
      if (other < 2) b.recv(other, Block::output(other));
    }
  };
  EXPECT_EQ(complaint(handmade(Collective::kAllGather, 3, {{0, 1}, {0, 1, 2}, 2}, gather)), "");
  EXPECT_COMPLAINT(handmade(Collective::kAllGather, 3, {{0, 1, 2}, {0, 1, 2}, 3}, gather),
                   "output part 2 is wrong");
  EXPECT_COMPLAINT(handmade(Collective::kAllGather, 3, {{0}, {0, 1, 2}, 1}, gather),
                   "output part 1 is wrong");
}

TEST(Contract, BarriersWaitForThoseWhoContribute) {
  const auto enter = [](PlanBuilder& b, int rank) {
    if (rank != 0) b.send(0, Block::input(0));
    for (int other = 1; other < 3 && rank == 0; ++other)
      b.recv(other, Block::scratch(other - 1), {}, Block::input(0));
  };
  EXPECT_EQ(complaint(handmade(Collective::kBarrier, 3, {{0, 1, 2}, {0}, 3}, enter)), "");
  EXPECT_EQ(complaint(handmade(Collective::kBarrier, 3, {{1, 2}, {0}, 2}, enter)), "");
  EXPECT_COMPLAINT(handmade(Collective::kBarrier, 3, {{0, 1, 2}, {0, 1}, 3}, enter),
                   "may leave before rank 0 has entered");
}

TEST(Contract, ContradictionsAreNamed) {
  const auto idle = [](PlanBuilder&, int) {};
  const auto with = [&](Contract contract) {
    return handmade(Collective::kAllReduce, 2, std::move(contract), idle);
  };
  EXPECT_COMPLAINT(with({{1, 0}, {0, 1}, 2}), "contributors are not ranks in ascending order");
  EXPECT_COMPLAINT(with({{0, 1}, {0, 2}, 2}), "receivers are not ranks in ascending order");
  EXPECT_COMPLAINT(with({{0, 1}, {0, 1}, 3}), "quorum is 3 of 2 contributors");
  EXPECT_COMPLAINT(with({{0, 1}, {0, 1}, 0}), "quorum is 0");
  EXPECT_COMPLAINT(handmade(Collective::kReduce, 2, {{0, 1}, {0}, 2}, idle, 1),
                   "receivers are not the root alone");
}

TEST(Contract, ResidualsAreTakenOnce) {
  const auto coded = [](Schedule schedule) {
    schedule.set_coding(Edges::kAll, 2);
    return schedule;
  };
  const auto twice = [&](bool ordered) {
    return coded(handmade(Collective::kAllReduce, 2, Contract::of({Collective::kAllReduce, 2, -1}),
                          [=](PlanBuilder& b, int) {
                            const OpId first = b.copy(kBuffer, Block::coded(0), {}, {}, true);
                            std::vector<OpId> after;
                            if (ordered) after.push_back(first);
                            b.copy(kBuffer, Block::coded(1), after, {}, true);
                          }));
  };
  EXPECT_COMPLAINT(twice(true), "encodes what op 0 has encoded");
  EXPECT_COMPLAINT(twice(false), "encodes what op 0 has encoded");
  const auto fold_beside = coded(
      handmade(Collective::kAllReduce, 2, Contract::of({Collective::kAllReduce, 2, -1}),
               [](PlanBuilder& b, int) {
                 b.copy(kBuffer, Block::coded(0), {}, {}, true);
                 b.reduce({{kBuffer, Block::scratch(0)}}, Block::coded(1), true, {}, {}, true);
               }));
  EXPECT_COMPLAINT(fold_beside, "over a residual");
}

TEST(Sample, FindsWhatOneRankDoesWrong) {
  const auto ring = [](int broken, int what) {
    return handmade(
        Collective::kBroadcast, 1000,
        {{0},
         [] {
           std::vector<int> all(1000);
           std::iota(all.begin(), all.end(), 0);
           return all;
         }(),
         1},
        [=](PlanBuilder& b, int rank) {
          std::vector<OpId> got;
          if (rank > 0) got.push_back(b.recv(rank - 1, kBuffer));
          if (rank == broken && what == 0) got.clear();
          const int id = rank == broken && what == 1 ? 7 : 0;
          if (rank < 999) b.send(rank + 1, kBuffer, got, {}, id);
        },
        0);
  };
  const auto sample = [](const Schedule& schedule, const std::vector<int>& ranks) -> std::string {
    try {
      check_sample(schedule, ranks, {.ops = 1});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(sample(ring(-1, 0), {0, 500, 999}), "");
  EXPECT_NE(sample(ring(500, 0), {500}).find("races with op 0"), std::string::npos);
  EXPECT_NE(sample(ring(500, 1), {500}).find("nobody sends"), std::string::npos);
  EXPECT_NE(sample(ring(500, 1), {501}).find("nobody sends"), std::string::npos);
  EXPECT_EQ(sample(ring(500, 1), {3, 700}), "");
}

// Rank 0 folds what all send, but for one of them that it forgets, or takes twice.
TEST(Sample, TracesResultsThroughAllRanks) {
  constexpr int kRanks = 500;
  const auto star = [](int forgotten, int twice) {
    return handmade(
        Collective::kReduce, kRanks, Contract::of({Collective::kReduce, kRanks, 0}),
        [=](PlanBuilder& b, int rank) {
          if (rank != 0) {
            b.send(0, kBuffer);
            return;
          }
          std::vector<Block> operands{kBuffer};
          std::vector<OpId> received;
          for (int other = 1; other < kRanks; ++other) {
            const Block block = Block::scratch(other);
            received.push_back(b.recv(other, block, {}, kBuffer));
            if (other != forgotten) operands.push_back(block);
            if (other == twice) operands.push_back(block);
          }
          b.reduce(operands, kBuffer, true, received);
        },
        0);
  };
  const auto trace = [](const Schedule& schedule, size_t ops) -> std::string {
    try {
      return std::to_string(check_sample(schedule, std::vector<int>{0, 1}, {2, ops}));
    } catch (const Error& error) {
      return error.what();
    }
  };
  EXPECT_EQ(trace(star(-1, -1), 1 << 20), "1");
  EXPECT_EQ(trace(star(-1, -1), 100), "0");
  EXPECT_NE(trace(star(417, -1), 1 << 20).find("lacks the contribution of rank 417"),
            std::string::npos);
  EXPECT_NE(trace(star(-1, 417), 1 << 20).find("counts the contribution of rank 417 twice"),
            std::string::npos);
}

}  // namespace
}  // namespace q7x2
