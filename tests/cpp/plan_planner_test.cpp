// What the Planner chooses, and what it refuses.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "plan/contest.h"
#include "plan/planner.h"

namespace q7x2 {
namespace {

constexpr size_t kKiB = size_t{1} << 10;
constexpr size_t kMiB = size_t{1} << 20;
constexpr double kGigabit = 125e6;

using FabricPtr = std::shared_ptr<const Fabric>;

FabricPtr one_host(int ranks) {
  return std::make_shared<Fabric>(Fabric::one_host_of(ranks, ranks));
}

FabricPtr network(int hosts) {
  return std::make_shared<Fabric>(Fabric::uniform(hosts, 1, kGigabit));
}

std::string algorithm(Planner& planner, const CallShape& shape) {
  return planner.choose(shape).plan->algorithm;
}

std::string algorithm(const FabricPtr& fabric, const CallShape& shape) {
  Planner planner(0, fabric, "");
  return algorithm(planner, shape);
}

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

TEST(Planner, AsksForACodecsCostOnlyWhereNoChoiceIsRemembered) {
  Planner planner(0, one_host(4), "");
  int asked = 0;
  CallShape shape{Collective::kAllReduce, 1 << 16};
  shape.codec = "int8";
  shape.coding = [&](const Fabric& fabric) {
    EXPECT_EQ(fabric.world_size(), 4);
    ++asked;
    return CodingCost{};
  };
  for (int i = 0; i < 3; ++i) planner.choose(shape);
  EXPECT_EQ(asked, 1);
  shape.bytes *= 2;
  planner.choose(shape);
  EXPECT_EQ(asked, 2) << "of another size class";
  planner.set_fabric(one_host(4));
  planner.choose(shape);
  EXPECT_EQ(asked, 3) << "rates may have changed";
}

// A codec that makes messages four times shorter, and encodes so fast on a core.
CallShape coded_call(EdgeWish edges, double rate, size_t bytes = 16 * kMiB) {
  CallShape shape{Collective::kAllReduce, bytes};
  shape.codec = "int8";
  shape.dtype = DType::kFloat32;
  shape.edges = edges;
  shape.coding = [rate](const Fabric&) {
    return CodingCost{.messages = {{.ratio = 0.25, .encode_rate = rate, .decode_rate = rate}}};
  };
  return shape;
}

TEST(Planner, CodesTheEdgesThatTheCallNames) {
  const auto fabric = std::make_shared<Fabric>(Fabric::uniform(2, 4, kGigabit));
  Planner planner(0, fabric, "");
  const auto edges = [&](EdgeWish wish, double rate) {
    Planner fresh(0, fabric, "");
    return fresh.choose(coded_call(wish, rate)).plan->edges;
  };
  EXPECT_EQ(edges(EdgeWish::kAll, 4e9), Edges::kAll);
  EXPECT_EQ(edges(EdgeWish::kHost, 4e9), Edges::kHosts);
  EXPECT_EQ(edges(EdgeWish::kRack, 4e9), Edges::kNone);
  EXPECT_EQ(edges(EdgeWish::kAuto, 4e9), Edges::kHosts);
  EXPECT_EQ(edges(EdgeWish::kSlow, 4e9), Edges::kHosts);
  EXPECT_EQ(edges(EdgeWish::kSlow, 1e7), Edges::kNone) << "the codec is slower than the line";
  EXPECT_EQ(edges(EdgeWish::kHost, 1e7), Edges::kHosts) << "as the caller wishes";
  EXPECT_NE(planner.choose(coded_call(EdgeWish::kHost, 4e9)).plan,
            planner.choose(coded_call(EdgeWish::kRack, 4e9)).plan)
      << "the edges are part of the key";
}

TEST(Planner, OfAnotherElementTypeACodecCostsAnotherTime) {
  Planner planner(0, network(4), "");
  CallShape shape = coded_call(EdgeWish::kAuto, 4e9);
  int asked = 0;
  shape.coding = [&](const Fabric&) {
    ++asked;
    return CodingCost{};
  };
  planner.choose(shape);
  shape.dtype = DType::kBFloat16;
  planner.choose(shape);
  EXPECT_EQ(asked, 2);
}

TEST(Planner, SlowEdgesNeverLoseToDenseOnes) {
  for (const auto& fabric :
       {one_host(4), network(4),
        FabricPtr(std::make_shared<Fabric>(Fabric::uniform(2, 4, kGigabit)))}) {
    Planner planner(0, fabric, "");
    for (const size_t bytes : {size_t{64}, 64 * kKiB, kMiB, 64 * kMiB}) {
      const double dense = planner.choose({Collective::kAllReduce, bytes}).seconds;
      for (const double rate : {1e7, 1e9, 1e10}) {
        Planner fresh(0, fabric, "");
        const Choice choice = fresh.choose(coded_call(EdgeWish::kSlow, rate, bytes));
        EXPECT_LE(choice.seconds, dense * 1.0001) << bytes << " bytes, " << rate;
      }
    }
  }
}

TEST(Planner, RacksAreCodedWhereTheirCableIsTheBound) {
  Fabric fabric = Fabric::uniform(4, 2, 10 * kGigabit);
  fabric.racks = {{"a", kGigabit / 10, kGigabit / 10}, {"b", kGigabit / 10, kGigabit / 10}};
  for (size_t host = 0; host < 4; ++host) fabric.hosts[host].rack = static_cast<int>(host / 2);
  Planner planner(0, std::make_shared<Fabric>(fabric), "");
  EXPECT_EQ(planner.choose(coded_call(EdgeWish::kRack, 4e9)).plan->edges, Edges::kRacks);
  EXPECT_NE(planner.choose(coded_call(EdgeWish::kSlow, 4e9)).plan->edges, Edges::kNone);
}

TEST(Planner, LossyCodecsEncodeNoSumAgain) {
  Planner planner(0, network(5), "");
  for (const auto& candidate : planner.explain(coded_call(EdgeWish::kAll, 4e9))) {
    EXPECT_EQ(candidate.algorithm, "sra");
  }
  CallShape exact = coded_call(EdgeWish::kAll, 4e9);
  exact.exact_sums = true;
  const auto candidates = planner.explain(exact);
  EXPECT_TRUE(std::ranges::any_of(
      candidates, [](const Candidate& each) { return each.algorithm == "recursive_doubling"; }));
}

TEST(Planner, VotesAreCountedByOwners) {
  Planner planner(0, network(2), "");
  CallShape vote = coded_call(EdgeWish::kAll, 4e9);
  EXPECT_GT(planner.explain(vote).size(), 1U);
  vote.sums_by_owners = true;
  const auto candidates = planner.explain(vote);
  ASSERT_EQ(candidates.size(), 1U);
  EXPECT_EQ(candidates[0].algorithm, "sra");
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

TEST(Planner, ExplainsItsChoice) {
  Planner planner(2, network(4), "");
  for (const size_t bytes : {size_t{4}, 64 * kKiB, 16 * kMiB}) {
    const CallShape shape{Collective::kAllReduce, bytes};
    const std::vector<Candidate> candidates = planner.explain(shape);
    ASSERT_GT(candidates.size(), 3U);
    const Choice choice = planner.choose(shape);
    EXPECT_EQ(candidates[0].algorithm, choice.plan->algorithm);
    EXPECT_EQ(candidates[0].slice_bytes, choice.slice_bytes);
    EXPECT_EQ(candidates[0].window, choice.window);
    for (size_t i = 1; i < candidates.size(); ++i) {
      EXPECT_LE(candidates[i - 1].seconds(), candidates[i].seconds());
      EXPECT_FALSE(candidates[i].prediction.loads.empty());
    }
  }
}

TEST(Planner, ExplainsInTheOrderOfTimeWhateverWasSimulated) {
  for (const int hosts : {16, 48}) {
    for (const size_t bytes : {64 * kKiB, 16 * kMiB}) {
      const auto candidates =
          Planner(0, network(hosts), "").explain({Collective::kAllReduce, bytes});
      for (size_t i = 1; i < candidates.size(); ++i) {
        EXPECT_LE(candidates[i - 1].seconds(), candidates[i].seconds())
            << candidates[i].algorithm << ", " << hosts << " hosts";
      }
    }
  }
}

TEST(Planner, MeasuredTimesStandFirstAndOthersInTheOrderOfTime) {
  std::vector<Standing> standings(3);
  standings[0].prediction.seconds = 2e-3;
  standings[0].is_simulated = true;
  standings[1].prediction.seconds = 1e-3;
  standings[2].prediction.seconds = 1e-3;
  standings[2].measured = 3e-3;
  sort_standings(standings);
  EXPECT_EQ(standings[0].measured, 3e-3);
  EXPECT_EQ(standings[1].seconds(), 1e-3);
  EXPECT_TRUE(standings[2].is_simulated);
  // A wire bounds both alike.
  standings[1].prediction.seconds_after_pause = 0.9e-3;
  standings[2].prediction.seconds = 1.0000001e-3;
  standings[2].prediction.seconds_after_pause = 0.8e-3;
  sort_standings(standings);
  EXPECT_EQ(standings[1].prediction.seconds_after_pause, 0.8e-3);
}

TEST(Planner, ExplainsTheCallItselfNotItsSizeClass) {
  Planner planner(0, network(4), "");
  const std::vector<Candidate> whole = planner.explain({Collective::kAllReduce, 16 * kMiB});
  const std::vector<Candidate> less = planner.explain({Collective::kAllReduce, 12 * kMiB});
  ASSERT_EQ(whole.size(), less.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(less[i].algorithm, whole[i].algorithm) << "one choice for both";
    EXPECT_EQ(less[i].slice_bytes, whole[i].slice_bytes);
    EXPECT_NEAR(less[i].seconds() / whole[i].seconds(), 0.75, 0.05) << less[i].algorithm;
  }
}

// ------------------------------------------------------------------------------ measured times

// What every candidate takes, as somebody might have measured it: the prediction, changed by a
// factor of up to two that no model knows.
std::vector<Fabric::Tuned> measured(const FabricPtr& fabric, const std::vector<size_t>& sizes) {
  std::vector<Fabric::Tuned> times;
  uint32_t noise = 1;
  for (const size_t bytes : sizes) {
    for (const Candidate& each : Planner(0, fabric, "").explain({Collective::kAllReduce, bytes})) {
      noise = noise * 1664525 + 1013904223;
      const double factor = 0.5 + 1.5 * (noise >> 8) / (1 << 24);
      times.push_back({Collective::kAllReduce, fabric->world_size(), bytes, each.algorithm,
                       each.slice_bytes, each.window, each.prediction.seconds * factor});
    }
  }
  return times;
}

TEST(Planner, MeasuredTimesDecide) {
  Fabric tuned = *network(4);
  tuned.tuned = {{Collective::kAllReduce, 4, kMiB, "ring", 128 * kKiB, 2, 1e-3},
                 {Collective::kAllReduce, 4, kMiB, "sra", 256 * kKiB, 4, 2e-3}};
  Planner planner(3, network(4), "");
  planner.choose({Collective::kAllReduce, kMiB});  // must be forgotten
  planner.set_fabric(std::make_shared<Fabric>(tuned));
  const Choice choice = planner.choose({Collective::kAllReduce, kMiB});
  EXPECT_EQ(choice.plan->algorithm, "ring");
  EXPECT_EQ(choice.slice_bytes, 128 * kKiB);
  EXPECT_EQ(choice.window, 2);
  EXPECT_EQ(planner.explain({Collective::kAllReduce, kMiB})[0].measured, 1e-3);
  EXPECT_EQ(algorithm(planner, {Collective::kAllReduce, kMiB, -1, true}), "sra")
      << "the best measured one that rounds once";
  EXPECT_EQ(algorithm(planner, {Collective::kAllReduce, kMiB / 2}), "ring") << "a neighbour";
  EXPECT_EQ(algorithm(planner, {Collective::kAllReduce, 4}), "direct") << "too far away";

  tuned.tuned[0].seconds = 3e-3;
  planner.set_fabric(std::make_shared<Fabric>(tuned));
  EXPECT_EQ(algorithm(planner, {Collective::kAllReduce, kMiB}), "sra");

  tuned.tuned[0].ranks = 8;
  tuned.tuned[0].seconds = 1e-9;
  planner.set_fabric(std::make_shared<Fabric>(tuned));
  EXPECT_EQ(algorithm(planner, {Collective::kAllReduce, kMiB}), "sra") << "those were other groups";
}

TEST(Planner, ATunedCutTakesNoMoreMemoryThanOthers) {
  for (const FabricPtr& plain : {one_host(4), network(4)}) {
    for (const std::string name : {"direct", "ring", "sra", "ccube"}) {
      for (const size_t slice : {size_t{0}, 64 * kMiB, size_t{1} << 52, ~size_t{0}}) {
        for (const int window : {1, 16, 1 << 20}) {
          Fabric tuned = *plain;
          tuned.tuned = {{Collective::kAllReduce, 4, 256 * kMiB, name, slice, window, 1e-9}};
          Planner planner(0, std::make_shared<Fabric>(tuned), "");
          const Choice choice = planner.choose({Collective::kAllReduce, 256 * kMiB});
          const auto in_progress = choice.part_bytes * static_cast<size_t>(choice.window);
          EXPECT_EQ(choice.plan->algorithm, name);
          EXPECT_GT(choice.slice_bytes, 0U);
          EXPECT_LE(choice.window, Choice::kMaxWindow);
          EXPECT_LE(in_progress * choice.plan->num_scratch, 32 * kMiB) << name << " " << slice;
          const size_t staged = plain->one_host() ? choice.plan->num_stages : 0;
          EXPECT_LE(in_progress * staged, 8 * kMiB) << name << " " << slice;
        }
      }
    }
  }
}

TEST(Planner, NeverFarBehindTheBestFixedAlgorithmThatWasMeasured) {
  std::vector<size_t> sizes;
  for (size_t bytes = 4; bytes <= 64 * kMiB; bytes *= 4) sizes.push_back(bytes);
  for (const FabricPtr& plain : {one_host(4), network(3), network(8)}) {
    auto fabric = std::make_shared<Fabric>(*plain);
    fabric->tuned = measured(plain, sizes);
    Planner planner(0, fabric, "");
    for (const size_t bytes : sizes) {
      const Choice choice = planner.choose({Collective::kAllReduce, bytes});
      double best = 1e9;
      double chosen = 1e9;
      for (const Fabric::Tuned& time : fabric->tuned) {
        if (time.bytes != bytes) continue;
        best = std::min(best, time.seconds);
        if (time.algorithm == choice.plan->algorithm) chosen = time.seconds;
      }
      EXPECT_LE(chosen, best * 1.1) << bytes << " bytes";
    }
  }
}

}  // namespace
}  // namespace q7x2
