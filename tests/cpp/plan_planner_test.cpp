// What the Planner chooses, and what it refuses.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "plan/choose/planner.h"
#include "planning.h"

namespace q7x2 {
namespace {

using test::algorithm;
using test::FabricPtr;
using test::kGigabit;
using test::kKiB;
using test::kMiB;
using test::network;
using test::one_host;

std::string refusal(const std::string& forced) {
  try {
    Planner(0, one_host(2), forced);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(Planner, TinyDataTakesOneSliceAndFewSteps) {
  for (const FabricPtr& fabric : {one_host(2), one_host(4), network(2), network(4)}) {
    Planner planner(0, fabric, "");
    const Choice choice = planner.choose({Collective::kAllReduce, 4});
    EXPECT_EQ(choice.plan->algorithm, "direct");
    EXPECT_EQ(choice.window, 1);
    EXPECT_EQ(choice.slice_bytes, 64U);
  }
}

TEST(Planner, LargeDataMovesFewBytes) {
  Planner planner(1, one_host(4), "");
  const Choice choice = planner.choose({Collective::kAllReduce, 16 * kMiB});
  EXPECT_EQ(choice.plan->rank, 1);
  EXPECT_GT(choice.window, 1);
  for (const FabricPtr& fabric : {one_host(4), network(4), network(7)}) {
    const std::string chosen = algorithm(fabric, {Collective::kAllReduce, 16 * kMiB});
    EXPECT_NE(chosen, "direct");
    EXPECT_NE(chosen, "recursive_doubling");
    EXPECT_NE(chosen, "binomial_tree");
  }
  EXPECT_NE(algorithm(network(8), {Collective::kBroadcast, 64 * kMiB, 3}), "direct");
  EXPECT_NE(algorithm(network(8), {Collective::kReduce, 64 * kMiB, 3}), "direct");
}

TEST(Planner, WideAccumulationTakesPlansThatRoundOnce) {
  for (int n : {2, 5, 17, 100}) {
    for (const FabricPtr& fabric : {one_host(n), network(n)}) {
      Planner planner(0, fabric, "");
      for (const auto op :
           {Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter}) {
        for (size_t bytes : {size_t{0}, size_t{2}, 64 * kMiB, CallShape::kUneven}) {
          EXPECT_TRUE(planner.choose({op, bytes, 0, true}).plan->rounds_once);
        }
      }
    }
  }
  Planner ring(0, network(4), "ring");
  EXPECT_EQ(algorithm(ring, {Collective::kAllReduce, kMiB}), "ring");
  EXPECT_TRUE(ring.choose({Collective::kAllReduce, kMiB, -1, true}).plan->rounds_once);
  EXPECT_EQ(algorithm(ring, {Collective::kAllGather, kMiB, -1, true}), "ring");
}

TEST(Planner, SlicesAreAlignedBoundedAndEqualOnAllRanks) {
  const std::vector<Collective> collectives = {
      Collective::kAllReduce, Collective::kReduce,  Collective::kBroadcast,
      Collective::kAllGather, Collective::kGather,  Collective::kReduceScatter,
      Collective::kAllToAll,  Collective::kScatter, Collective::kBarrier};
  for (int n : {1, 2, 3, 7, 16}) {
    for (const FabricPtr& fabric : {one_host(n), network(n)}) {
      for (const Collective op : collectives) {
        for (size_t bytes : {size_t{0}, size_t{1}, size_t{1000}, size_t{100'000}, 3 * kMiB + 5,
                             100 * kMiB, size_t{5} << 30, CallShape::kUneven}) {
          const CallShape shape{op, bytes, 0, false};
          SCOPED_TRACE(std::string(to_string(op)) + " of " + std::to_string(bytes) + " by " +
                       std::to_string(n));
          Planner first(0, fabric, "");
          Planner last(n - 1, fabric, "");
          const Choice a = first.choose(shape);
          const Choice b = last.choose(shape);
          EXPECT_EQ(a.plan->algorithm, b.plan->algorithm);
          EXPECT_EQ(a.slice_bytes, b.slice_bytes);
          EXPECT_EQ(a.part_bytes, b.part_bytes);
          EXPECT_EQ(a.window, b.window);

          size_t total = 1;
          size_t heaviest = 1;
          if (const auto& weights = a.plan->part_weights; !weights.empty()) {
            total = std::accumulate(weights.begin(), weights.end(), size_t{0});
            heaviest = *std::max_element(weights.begin(), weights.end());
          }
          EXPECT_EQ(a.slice_bytes % (64 * total), 0U);
          EXPECT_EQ(a.slice_bytes / total * heaviest, a.part_bytes);
          EXPECT_GT(a.slice_bytes, 0U);
          EXPECT_GE(a.window, 1);
          EXPECT_LE(a.window, Choice::kMaxWindow);
          EXPECT_LE(a.part_bytes * a.plan->num_scratch * static_cast<size_t>(a.window), 33 * kMiB);
        }
      }
    }
  }
}

TEST(Planner, RatesOfZeroDoNotLimit) {
  for (const FabricPtr& some : {one_host(4), network(4)}) {
    Fabric fabric = *some;
    fabric.copy_rate = 0;
    fabric.reduce_rate = 0;
    const Planner planner(0, std::make_shared<Fabric>(fabric), "");
    for (const auto op : {Collective::kAllReduce, Collective::kAllGather, Collective::kBroadcast}) {
      for (const Candidate& candidate : planner.explain({op, kMiB, 0})) {
        EXPECT_TRUE(std::isfinite(candidate.seconds())) << candidate.algorithm;
        EXPECT_GT(candidate.seconds(), 0) << candidate.algorithm;
      }
      Planner chooser(0, std::make_shared<Fabric>(fabric), "");
      EXPECT_NE(chooser.choose({op, kMiB, 0}).plan, nullptr);
    }
  }
}

TEST(Planner, OnlyRanksOfOneHostNeedSharedMemory) {
  Planner planner(0, network(64), "ring");
  const Choice choice = planner.choose({Collective::kAllReduce, 64 * kMiB});
  EXPECT_GE(choice.part_bytes, 256 * kKiB);
}

TEST(Planner, UnevenCallsArePipelined) {
  Planner planner(0, network(4), "");
  const Choice choice = planner.choose({Collective::kAllGather, CallShape::kUneven});
  EXPECT_GT(choice.window, 1);
  EXPECT_GE(choice.slice_bytes, 16 * kKiB);
}

TEST(Planner, SeveralSendersDoNotFloodAQueue) {
  // Of messages that cost as much as these, the model would send few and long ones.
  for (const double rate : {kGigabit, kGigabit / 10}) {
    Fabric fabric = Fabric::uniform(4, 1, rate);
    fabric.network.overhead = 1e-3;
    Planner planner(0, std::make_shared<Fabric>(fabric), "sra");
    const Choice choice = planner.choose({Collective::kAllReduce, 16 * kMiB});
    const size_t on_their_way = 3 * choice.part_bytes * static_cast<size_t>(choice.window);
    const size_t shortest = 3 * 4 * 32 * kKiB;  // senders, slices, bytes
    EXPECT_LE(on_their_way, std::max(static_cast<size_t>(0.02 * rate), shortest)) << rate;
  }
}

TEST(Planner, RemembersChoices) {
  Planner planner(0, one_host(4), "");
  const auto plan = planner.choose({Collective::kAllReduce, 1000}).plan;
  EXPECT_EQ(planner.choose({Collective::kAllReduce, 1024}).plan, plan) << "of the same size class";
  EXPECT_NE(planner.choose({Collective::kAllReduce, 1025}).plan, plan);
  EXPECT_NE(planner.choose({Collective::kBroadcast, 1000, 1}).plan,
            planner.choose({Collective::kBroadcast, 1000, 2}).plan);
}

TEST(Planner, IsSafeToShareBetweenThreads) {
  Planner planner(0, one_host(4), "");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&planner] {
      for (size_t bytes = 1; bytes < 64 * kMiB; bytes *= 2) {
        EXPECT_NE(planner.choose({Collective::kAllReduce, bytes}).plan, nullptr);
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(Planner, ForcedAlgorithmsAreChosenWhereTheyApply) {
  Planner planner(0, one_host(4), " ring , binomial_tree");
  for (size_t bytes : {size_t{4}, 16 * kMiB}) {
    const std::string chosen = algorithm(planner, {Collective::kAllReduce, bytes});
    EXPECT_TRUE(chosen == "ring" || chosen == "binomial_tree") << chosen;
    EXPECT_EQ(algorithm(planner, {Collective::kBroadcast, bytes, 0}), "binomial_tree");
    EXPECT_EQ(algorithm(planner, {Collective::kAllGather, bytes}), "ring");
  }
  EXPECT_EQ(algorithm(planner, {Collective::kBarrier}), "dissemination");
}

TEST(Planner, ACallsAlgorithmsOverruleTheForcedOnes) {
  Planner planner(0, network(4), "ring");
  CallShape shape{Collective::kAllReduce, 4};
  shape.algorithms = "sra";
  EXPECT_EQ(algorithm(planner, shape), "sra");
  shape.algorithms.clear();
  EXPECT_EQ(algorithm(planner, shape), "ring");
  shape.algorithms = "rung";
  EXPECT_THROW(planner.choose(shape), Error);
}

TEST(Planner, UnknownAlgorithmsAreRefused) {
  EXPECT_EQ(refusal(""), "");
  EXPECT_EQ(refusal("  "), "");
  EXPECT_EQ(refusal("sra"), "");
  const std::string misspelled = refusal("ring,recursive_dubling");
  EXPECT_NE(misspelled.find("unknown algorithm 'recursive_dubling'"), std::string::npos);
  EXPECT_NE(misspelled.find("did you mean 'recursive_doubling'?"), std::string::npos);
  EXPECT_NE(misspelled.find("binomial_tree, "), std::string::npos) << "lists what exists";
  EXPECT_NE(refusal("binomial").find("did you mean 'binomial_tree'?"), std::string::npos);
  EXPECT_NE(refusal("ring,").find("unknown algorithm ''"), std::string::npos);
  EXPECT_NE(refusal("ring:2").find("'ring' takes no parameter"), std::string::npos);
}

TEST(Planner, ForcedParametersAreChosenOrRefused) {
  CallShape shape{Collective::kAllReduce, kMiB};
  Planner planner(0, network(8), "aggregator:2");
  EXPECT_EQ(algorithm(planner, shape), "aggregator:2");
  shape.algorithms = "aggregator";
  EXPECT_EQ(algorithm(planner, shape).substr(0, 11), "aggregator:") << "with the best parameter";
  shape.algorithms = "aggregator:77";
  try {
    planner.choose(shape);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("expected aggregator:1, aggregator:2"),
              std::string::npos);
  }
  EXPECT_NE(refusal("aggregator:two").find("expected a number"), std::string::npos);
}

TEST(Planner, TwoRacksTakeAHierarchy) {
  // 2 racks of 4 hosts, whose uplinks are slower than one of their hosts.
  auto racks = std::make_shared<Fabric>(Fabric::uniform(8, 1, 25e6));
  racks->racks = {{"a", 6.25e6, 6.25e6}, {"b", 6.25e6, 6.25e6}};
  for (int host = 4; host < 8; ++host) racks->hosts[static_cast<size_t>(host)].rack = 1;
  EXPECT_EQ(algorithm(racks, {Collective::kAllReduce, 16 * kMiB}).substr(0, 12), "hierarchical");
}

TEST(Planner, InvalidRanksAndRootsAreRefused) {
  EXPECT_THROW(Planner(2, one_host(2), ""), Error);
  EXPECT_THROW(Planner(-1, one_host(2), ""), Error);
  EXPECT_THROW(Planner(0, std::make_shared<Fabric>(), ""), Error);
  Planner planner(0, one_host(2), "");
  EXPECT_THROW(planner.choose({Collective::kBroadcast, 4, 2}), Error);
  EXPECT_THROW(planner.choose({Collective::kReduce, 4}), Error);
  EXPECT_THROW(planner.set_fabric(one_host(3)), Error);
}

}  // namespace
}  // namespace q7x2
