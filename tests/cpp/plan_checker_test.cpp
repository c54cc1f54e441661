// The checker rejects what is broken, and says where.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "fabric/fabric.h"
#include "plan/checker.h"
#include "plan/coding_pass.h"
#include "plan/generators.h"
#include "plan/plan.h"
#include "plan/schedule.h"

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

Schedule schedule(const std::string& name, Collective op, int n, int root = -1) {
  for (const Generator& generator : generators()) {
    if (generator.name == name && generator.collective == op)
      return generator.generate({op, n, root});
  }
  throw Error(ErrorCode::kInternal, "no generator " + name);
}

std::vector<Plan> generate(const std::string& name, Collective op, int n, int root = -1) {
  return schedule(name, op, n, root).project_all();
}

// Builds the Plans of `n` ranks by hand.
std::vector<Plan> build(Collective op, int n,
                        const std::function<void(PlanBuilder&, int rank)>& add_ops, int root = -1) {
  std::vector<Plan> plans;
  for (int rank = 0; rank < n; ++rank) {
    PlanBuilder b(Schedule({op, n, root}, "handmade").header(rank));
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
