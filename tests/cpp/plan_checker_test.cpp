// The checker rejects handmade Plans that are broken, and says where.
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "checked_plans.h"
#include "plan/ir/plan.h"

namespace q7x2 {
namespace {

using test::build;
using test::complaint;
using test::exchange_and_fold;
using test::generate;
using test::kBuffer;
using test::OpId;

TEST(Checker, AcceptsAHandmadePlan) {
  EXPECT_EQ(complaint(build(Collective::kAllReduce, 2, exchange_and_fold)), "");
}

TEST(Checker, NamesAlgorithmRankAndOp) {
  auto plans = build(Collective::kAllReduce, 2, exchange_and_fold);
  plans[1].ops[2].is_final = false;
  EXPECT_COMPLAINT(plans, "all_reduce handmade, rank 1 of 2: output part 0 has passed no final");
  plans[1].ops[0].message = 9;
  EXPECT_COMPLAINT(plans, "rank 0 of 2: op 1 (recv #0 from 1 -> scratch[0], length of out[0])");
}

TEST(Checker, MissingSend) {
  const auto plans = build(
      Collective::kBroadcast, 3,
      [](PlanBuilder& b, int rank) {
        if (rank == 0) {
          b.send(1, kBuffer);
        } else {
          b.recv(0, kBuffer);
        }
      },
      0);
  EXPECT_COMPLAINT(plans,
                   "rank 2 of 3: op 0 (recv #0 from 0 -> out[0], length of out[0]) waits for "
                   "a message that nobody sends");
}

TEST(Checker, MissingReceive) {
  const auto plans = build(
      Collective::kBroadcast, 2,
      [](PlanBuilder& b, int rank) {
        if (rank == 0) b.send(1, kBuffer);
      },
      0);
  EXPECT_COMPLAINT(plans, "sends a message that nobody receives");
}

TEST(Checker, MissingOutput) {
  const auto plans = build(Collective::kAllGather, 1, [](PlanBuilder&, int) {});
  EXPECT_COMPLAINT(plans, "output part 0 is wrong");
  EXPECT_COMPLAINT(build(Collective::kReduceScatter, 1, [](PlanBuilder&, int) {}),
                   "output part 0 is never written");
}

TEST(Checker, DoubleCounting) {
  const auto plans = build(Collective::kAllReduce, 2, [](PlanBuilder& b, int rank) {
    const OpId sent = b.send(1 - rank, kBuffer);
    const OpId received = b.recv(1 - rank, Block::scratch(0), {}, kBuffer);
    b.reduce({{kBuffer, Block::scratch(0), Block::scratch(0)}}, kBuffer, true, {{sent, received}});
  });
  EXPECT_COMPLAINT(plans, " twice");
}

TEST(Checker, MissingContribution) {
  const auto plans = build(
      Collective::kReduce, 3,
      [](PlanBuilder& b, int rank) {
        if (rank == 1) b.send(0, kBuffer);
        if (rank != 0) return;
        const OpId received = b.recv(1, Block::scratch(0), {}, kBuffer);
        b.reduce({{kBuffer, Block::scratch(0)}}, kBuffer, true, {{received}});
      },
      0);
  EXPECT_COMPLAINT(plans, "is final without the contribution of rank 2");
}

TEST(Checker, FinalFlagTooOften) {
  const auto plans = build(
      Collective::kReduce, 2,
      [](PlanBuilder& b, int rank) {
        if (rank == 1) {
          b.send(0, kBuffer);
          b.send(0, kBuffer);
          return;
        }
        const OpId first = b.recv(1, Block::scratch(0), {}, kBuffer);
        const OpId second = b.recv(1, Block::scratch(1), {}, kBuffer);
        const OpId sum = b.reduce({{kBuffer, Block::scratch(0)}}, kBuffer, true, {{first, second}});
        b.reduce({{kBuffer, Block::scratch(1)}}, kBuffer, true, {{sum}});
      },
      0);
  EXPECT_COMPLAINT(plans, "folds a result that was final already");
}

TEST(Checker, OverwritingWhatIsBeingSent) {
  const auto plans = build(Collective::kAllReduce, 2, [](PlanBuilder& b, int rank) {
    b.send(1 - rank, kBuffer);
    const OpId received = b.recv(1 - rank, Block::scratch(0), {}, kBuffer);
    b.reduce({{kBuffer, Block::scratch(0)}}, kBuffer, true, {{received}});
  });
  EXPECT_COMPLAINT(plans,
                   "rank 0 of 2: op 2 (final reduce -> out[0] from out[0] scratch[0], length "
                   "of out[0]) races with op 0");
}

TEST(Checker, InputAndOutputOfAnInPlaceCollectiveAreOneBlock) {
  const auto plans = build(
      Collective::kBroadcast, 2,
      [](PlanBuilder& b, int rank) {
        b.send(1 - rank, Block::input(0));
        b.recv(1 - rank, Block::output(0));
      },
      0);
  EXPECT_COMPLAINT(plans, "races with op 0");
}

TEST(Checker, ReadingBeforeTheMessageIsThere) {
  const auto plans = build(Collective::kAllReduce, 2, [](PlanBuilder& b, int rank) {
    const OpId sent = b.send(1 - rank, kBuffer);
    b.recv(1 - rank, Block::scratch(0), {}, kBuffer);
    b.reduce({{kBuffer, Block::scratch(0)}}, kBuffer, true, {{sent}});
  });
  EXPECT_COMPLAINT(plans, "races with op 1");
}

TEST(Checker, ScratchUsedTwiceAtOnce) {
  const auto plans = build(
      Collective::kReduce, 3,
      [](PlanBuilder& b, int rank) {
        if (rank > 0) {
          b.send(0, kBuffer);
          return;
        }
        const OpId first = b.recv(1, Block::scratch(0), {}, kBuffer);
        const OpId second = b.recv(2, Block::scratch(0), {}, kBuffer);
        b.reduce({{kBuffer, Block::scratch(0)}}, kBuffer, true, {{first, second}});
      },
      0);
  EXPECT_COMPLAINT(plans, "races with op 0 (recv #0 from 1 -> scratch[0]");
}

TEST(Checker, ReadingScratchThatNobodyWrote) {
  const auto plans = build(
      Collective::kBroadcast, 2,
      [](PlanBuilder& b, int rank) {
        if (rank == 0) {
          b.send(1, Block::scratch(0), {}, kBuffer);
        } else {
          b.recv(0, kBuffer);
        }
      },
      0);
  EXPECT_COMPLAINT(plans, "reads a block that nothing was written to");
}

TEST(Checker, ScratchBeyondItsCount) {
  auto plans = build(Collective::kAllReduce, 2, exchange_and_fold);
  plans[0].num_scratch = 0;
  EXPECT_COMPLAINT(plans, "names a block that does not exist");
}

TEST(Checker, MoreScratchThanPromised) {
  auto plans = build(Collective::kAllReduce, 2, exchange_and_fold);
  plans[1].num_scratch = 4;
  EXPECT_EQ(complaint(plans), "");
  plans[1].num_scratch = 5;
  EXPECT_COMPLAINT(plans, "rank 1 of 2: has 5 scratch blocks, too many for 2 ranks");
}

TEST(Checker, OrderOfTheFoldDiffersBetweenRanks) {
  auto plans = build(Collective::kAllReduce, 2, exchange_and_fold);
  const uint32_t first = plans[1].ops[2].first_source;
  std::swap(plans[1].sources[first], plans[1].sources[first + 1]);
  EXPECT_COMPLAINT(plans, "replicas would differ");
}

TEST(Checker, RoundingOnceMeansRankOrder) {
  auto plans = generate("direct", Collective::kReduce, 4, 2);
  Plan& root = plans[2];
  const Op& fold = root.ops.back();
  std::swap(root.sources[fold.first_source], root.sources[fold.first_source + 3]);
  EXPECT_COMPLAINT(plans, "not folded in rank order");
}

TEST(Checker, FalseClaimToRoundOnce) {
  for (const char* name : {"ring", "recursive_doubling", "binomial_tree"}) {
    auto plans = generate(name, Collective::kAllReduce, 4);
    for (Plan& plan : plans) plan.rounds_once = true;
    EXPECT_COMPLAINT(plans, "rounded more than once");
  }
}

TEST(Checker, SwappedMessages) {
  auto plans = build(Collective::kAllToAll, 2, [](PlanBuilder& b, int rank) {
    b.copy(Block::input(rank), Block::output(rank));
    b.send(1 - rank, Block::input(1 - rank));
    b.recv(1 - rank, Block::output(1 - rank));
  });
  EXPECT_EQ(complaint(plans), "");
  plans[0].sources[1] = Block::input(0);
  plans[0].ops[1].length_of = Block::input(0);
  EXPECT_COMPLAINT(plans, "receives a message of another length");

  auto sra = generate("sra", Collective::kAllReduce, 3);
  std::vector<Op*> to_next;
  for (Op& op : sra[0].ops) {
    if (op.kind == OpKind::kSend && op.peer == 1) to_next.push_back(&op);
  }
  ASSERT_EQ(to_next.size(), 2U);
  std::swap(to_next[0]->message, to_next[1]->message);
  EXPECT_COMPLAINT(sra, "receives a message of another length");
}

TEST(Checker, SameMessageIdTwice) {
  auto plans = generate("sra", Collective::kAllReduce, 2);
  for (Op& op : plans[0].ops) op.message = 0;
  EXPECT_COMPLAINT(plans, "has the id of another message");
}

TEST(Checker, Deadlock) {
  const auto plans = build(Collective::kAllToAll, 2, [](PlanBuilder& b, int rank) {
    b.copy(Block::input(rank), Block::output(rank));
    const OpId received = b.recv(1 - rank, Block::output(1 - rank));
    b.send(1 - rank, Block::input(1 - rank), {{received}});
  });
  EXPECT_COMPLAINT(plans, "never completes: deadlock");
}

// Works where messages are buffered, hangs where a send completes when it is received.
TEST(Checker, DeadlockOfARendezvous) {
  const auto plans = build(Collective::kAllToAll, 2, [](PlanBuilder& b, int rank) {
    b.copy(Block::input(rank), Block::output(rank));
    const OpId sent = b.send(1 - rank, Block::input(1 - rank));
    b.recv(1 - rank, Block::output(1 - rank), {{sent}});
  });
  EXPECT_COMPLAINT(plans, "never completes: deadlock");
}

// What is staged for one send would be read by the receiver of another.
TEST(Checker, OneStageForDifferentBytes) {
  auto plans = build(Collective::kAllToAll, 3, [](PlanBuilder& b, int rank) {
    b.copy(Block::input(rank), Block::output(rank));
    for (int i = 1; i < 3; ++i) {
      const int peer = (rank + i) % 3;
      b.send(peer, Block::input(peer));
      b.recv(peer, Block::output(peer));
    }
  });
  EXPECT_EQ(complaint(plans), "");
  Op& second = plans[1].ops[3];
  second.stage = plans[1].ops[1].stage;
  EXPECT_COMPLAINT(
      plans,
      "rank 1 of 3: op 3 (send #0 to 0 from in[0], length of in[0]) has the stage of other bytes");
  second.stage = plans[1].num_stages;
  EXPECT_COMPLAINT(plans, "has no stage, or one that does not exist");
}

TEST(Checker, Cycle) {
  auto plans = build(Collective::kAllReduce, 2, exchange_and_fold);
  Plan& plan = plans[0];
  plan.ops[2].first_successor = static_cast<uint32_t>(plan.successors.size());
  plan.ops[2].num_successors = 1;
  plan.successors.push_back(0);
  plan.ops[0].num_dependencies = 1;
  EXPECT_COMPLAINT(plans, "waits for itself");
}

TEST(Checker, DependencyCountsThatDoNotAddUp) {
  auto plans = build(Collective::kAllReduce, 2, exchange_and_fold);
  plans[0].ops[2].num_dependencies = 3;
  EXPECT_COMPLAINT(plans, "counts 3 dependencies, has 2");
}

TEST(Checker, BlocksThatMustStayIntact) {
  const auto input = build(Collective::kAllGather, 1, [](PlanBuilder& b, int) {
    const OpId copied = b.copy(Block::input(0), Block::output(0));
    b.copy(Block::output(0), Block::input(0), {{copied}});
  });
  EXPECT_COMPLAINT(input, "overwrites the input");

  const auto other_rank = build(Collective::kReduce, 2, exchange_and_fold, 0);
  EXPECT_COMPLAINT(other_rank, "overwrites the buffer of a rank that receives nothing");

  const auto alias = build(Collective::kAllGather, 2, [](PlanBuilder& b, int rank) {
    b.send(1 - rank, Block::input(0));
    const OpId received = b.recv(1 - rank, Block::output(1 - rank));
    b.reduce({{Block::output(1 - rank), Block::input(0)}}, Block::output(rank), false,
             {{received}});
  });
  EXPECT_NE(complaint(alias), "");
}

TEST(Checker, ReducesWhereNothingIsReduced) {
  const auto plans = build(Collective::kBroadcast, 2, exchange_and_fold, 0);
  EXPECT_COMPLAINT(plans, "reduces, which the collective does not");
}

TEST(Checker, BarrierThatDoesNotWaitForAll) {
  const auto plans = build(Collective::kBarrier, 3, [](PlanBuilder& b, int rank) {
    b.send((rank + 1) % 3, Block::input(0));
    b.recv((rank + 2) % 3, Block::scratch(0), {}, Block::input(0));
  });
  EXPECT_COMPLAINT(plans, "rank 0 of 3: may leave before rank 1 has entered");
}

}  // namespace
}  // namespace q7x2
