// The checker rejects what is broken, and says where.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "fabric/fabric.h"
#include "plan/checker.h"
#include "plan/generators.h"
#include "plan/plan.h"

namespace q7x2 {
namespace {

using OpId = PlanBuilder::OpId;

const Block kBuffer = Block::output(0);

// The message of the Error that the checker throws, empty where it is content.
std::string complaint(const std::vector<Plan>& plans) {
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
    const std::string text = complaint(plans);                                      \
    EXPECT_NE(text.find(part), std::string::npos) << "complaint: '" << text << "'"; \
  } while (false)

std::vector<Plan> generate(const std::string& name, Collective op, int n, int root = -1) {
  for (const Generator& generator : generators()) {
    if (generator.name != name || generator.collective != op) continue;
    std::vector<Plan> plans;
    for (int rank = 0; rank < n; ++rank) plans.push_back(generator.generate({op, rank, n, root}));
    return plans;
  }
  ADD_FAILURE() << "no generator " << name;
  return {};
}

// Builds the Plans of `n` ranks by hand.
std::vector<Plan> build(Collective op, int n,
                        const std::function<void(PlanBuilder&, int rank)>& add_ops, int root = -1) {
  std::vector<Plan> plans;
  for (int rank = 0; rank < n; ++rank) {
    PlanBuilder b({op, rank, n, root}, "handmade");
    add_ops(b, rank);
    plans.push_back(b.build());
  }
  return plans;
}

// A correct all-reduce of two ranks, as a base to break.
void exchange_and_fold(PlanBuilder& b, int rank) {
  const OpId sent = b.send(1 - rank, kBuffer);
  const OpId received = b.recv(1 - rank, Block::scratch(0), {}, kBuffer);
  const Block lower = rank == 0 ? kBuffer : Block::scratch(0);
  const Block upper = rank == 0 ? Block::scratch(0) : kBuffer;
  b.reduce({{lower, upper}}, kBuffer, true, {{sent, received}});
}

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
  EXPECT_COMPLAINT(other_rank, "overwrites the buffer of a rank that is not the root");

  const auto alias = build(Collective::kAllGather, 2, [](PlanBuilder& b, int rank) {
    b.send(1 - rank, Block::input(0));
    const OpId received = b.recv(1 - rank, Block::output(1 - rank));
    b.reduce({{Block::output(1 - rank), Block::input(0)}}, Block::output(rank), false,
             {{received}});
  });
  EXPECT_NE(complaint(alias), "");
}

TEST(Checker, InputsThatResidualsCannotBeAddedTo) {
  const auto plans = build(Collective::kReduceScatter, 2, [](PlanBuilder& b, int rank) {
    const Block got = Block::scratch(0);
    const Block total = Block::coded(0);
    b.send(1 - rank, Block::input(1 - rank));
    const OpId received = b.recv(1 - rank, got, {}, Block::input(rank));
    const Block mine = Block::input(rank);
    const OpId sum =
        b.reduce({{rank == 0 ? mine : got, rank == 0 ? got : mine}}, total, true, {{received}});
    b.copy(total, Block::output(0), {{sum}});
  });
  EXPECT_COMPLAINT(plans, "sends the input as it is");
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

// Whatever generator, whatever op: one wrong flag, id or block never passes.
TEST(Checker, EveryMutationIsCaught) {
  for (const Generator& generator : generators()) {
    for (int n : {2, 3, 6}) {
      Fabric fabric = Fabric::uniform(2, n, 1e9);
      fabric.host_of.resize(static_cast<size_t>(n));
      for (int rank = 0; rank < n; ++rank) fabric.host_of[static_cast<size_t>(rank)] = rank % 2;
      PlanRequest request{generator.collective, 0, n, 1, &fabric};
      if (!generator.applies(request)) continue;
      if (generator.parameters != nullptr) request.parameter = generator.parameters(request).back();
      std::vector<Plan> plans;
      for (request.rank = 0; request.rank < n; ++request.rank) {
        plans.push_back(generator.generate(request));
      }
      ASSERT_EQ(complaint(plans), "");
      for (Plan& plan : plans) {
        for (size_t id = 0; id < plan.ops.size(); ++id) {
          SCOPED_TRACE(generator.name + ", rank " + std::to_string(plan.rank) + ", op " +
                       std::to_string(id) + "\n" + to_string(plan));
          const Op original = plan.ops[id];
          Op& op = plan.ops[id];
          op.is_final = !op.is_final;
          EXPECT_NE(complaint(plans), "") << "final flag";
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
            if (generator.collective != Collective::kBarrier) {
              EXPECT_NE(complaint(plans), "") << "destination";
            }
            op = original;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace q7x2
