// What the Planner chooses, and what it refuses.
#include <algorithm>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "plan/planner.h"

namespace q7x2 {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

std::string algorithm(Planner& planner, const CallShape& shape) {
  return planner.choose(shape).plan->algorithm;
}

std::string refusal(const std::string& forced) {
  try {
    Planner(0, 2, true, forced);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(Planner, TinyDataTakesOneSliceAndFewSteps) {
  for (int n : {2, 4}) {
    Planner planner(0, n, true, "");
    const Choice choice = planner.choose({Collective::kAllReduce, 4});
    EXPECT_EQ(choice.plan->algorithm, "direct");
    EXPECT_EQ(choice.window, 1);
    EXPECT_EQ(choice.slice_bytes, 64U);
  }
  Planner network(0, 16, false, "");
  EXPECT_EQ(algorithm(network, {Collective::kAllReduce, 4}), "direct");
  EXPECT_EQ(algorithm(network, {Collective::kAllReduce, 1024}), "recursive_doubling");
}

TEST(Planner, LargeDataTakesTheFewestBytes) {
  Planner one_host(1, 4, true, "");
  const Choice choice = one_host.choose({Collective::kAllReduce, 16 * kMiB});
  EXPECT_EQ(choice.plan->algorithm, "sra");
  EXPECT_EQ(choice.plan->rank, 1);
  EXPECT_GT(choice.window, 1);
  Planner network(0, 4, false, "");
  EXPECT_EQ(algorithm(network, {Collective::kAllReduce, 16 * kMiB}), "ring");
  EXPECT_EQ(algorithm(network, {Collective::kAllToAll, kMiB}), "pairwise");
  EXPECT_EQ(algorithm(network, {Collective::kAllToAll, 64}), "direct");
}

TEST(Planner, WideAccumulationTakesPlansThatRoundOnce) {
  for (bool one_host : {true, false}) {
    for (int n : {2, 5, 17, 100}) {
      Planner planner(0, n, one_host, "");
      for (const auto op :
           {Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter}) {
        for (size_t bytes : {size_t{0}, size_t{2}, 64 * kMiB, CallShape::kUneven}) {
          EXPECT_TRUE(planner.choose({op, bytes, 0, true}).plan->rounds_once);
        }
      }
    }
  }
  Planner ring(0, 4, false, "ring");
  EXPECT_EQ(algorithm(ring, {Collective::kAllReduce, kMiB}), "ring");
  EXPECT_TRUE(ring.choose({Collective::kAllReduce, kMiB, -1, true}).plan->rounds_once);
  EXPECT_EQ(algorithm(ring, {Collective::kAllGather, kMiB, -1, true}), "ring");
}

TEST(Planner, SlicesAreAlignedBoundedAndEqualOnAllRanks) {
  const std::vector<Collective> collectives = {
      Collective::kAllReduce, Collective::kReduce,  Collective::kBroadcast,
      Collective::kAllGather, Collective::kGather,  Collective::kReduceScatter,
      Collective::kAllToAll,  Collective::kScatter, Collective::kBarrier};
  for (bool one_host : {true, false}) {
    for (int n : {1, 2, 3, 7, 16}) {
      for (const Collective op : collectives) {
        for (size_t bytes : {size_t{0}, size_t{1}, size_t{1000}, size_t{100'000}, 3 * kMiB + 5,
                             100 * kMiB, size_t{5} << 30, CallShape::kUneven}) {
          const CallShape shape{op, bytes, 0, false};
          SCOPED_TRACE(std::string(to_string(op)) + " of " + std::to_string(bytes) + " by " +
                       std::to_string(n));
          Planner first(0, n, one_host, "");
          Planner last(n - 1, n, one_host, "");
          const Choice a = first.choose(shape);
          const Choice b = last.choose(shape);
          EXPECT_EQ(a.plan->algorithm, b.plan->algorithm);
          EXPECT_EQ(a.slice_bytes, b.slice_bytes);
          EXPECT_EQ(a.part_bytes, b.part_bytes);
          EXPECT_EQ(a.window, b.window);

          const auto& weights = a.plan->part_weights;
          const auto parts = std::max<size_t>(weights.size(), 1);
          EXPECT_EQ(a.slice_bytes % (64 * parts), 0U);
          EXPECT_EQ(a.slice_bytes, a.part_bytes * parts);
          EXPECT_GT(a.slice_bytes, 0U);
          EXPECT_GE(a.window, 1);
          EXPECT_LE(a.window, Choice::kMaxWindow);
          EXPECT_LE(a.part_bytes * a.plan->num_scratch * static_cast<size_t>(a.window), 33 * kMiB);
        }
      }
    }
  }
}

TEST(Planner, UnevenCallsArePipelined) {
  Planner planner(0, 4, false, "");
  const Choice choice = planner.choose({Collective::kAllGather, CallShape::kUneven});
  EXPECT_GT(choice.window, 1);
  EXPECT_GE(choice.slice_bytes, 64 * 1024U);
}

TEST(Planner, ChoicesOfOneAlgorithmGrowWithTheData) {
  for (bool one_host : {true, false}) {
    for (int n : {2, 4, 16}) {
      for (const auto op : {Collective::kAllReduce, Collective::kBroadcast}) {
        Planner planner(0, n, one_host, "");
        std::vector<std::string> chosen;
        for (size_t bytes = 1; bytes <= 256 * kMiB; bytes *= 2) {
          const std::string name = algorithm(planner, {op, bytes, 0});
          if (chosen.empty() || chosen.back() != name) chosen.push_back(name);
        }
        std::set<std::string> distinct(chosen.begin(), chosen.end());
        EXPECT_EQ(chosen.size(), distinct.size()) << to_string(op) << ": flips back and forth";
      }
    }
  }
}

TEST(Planner, RemembersChoices) {
  Planner planner(0, 4, true, "");
  const auto plan = planner.choose({Collective::kAllReduce, 1000}).plan;
  EXPECT_EQ(planner.choose({Collective::kAllReduce, 1024}).plan, plan) << "of the same size class";
  EXPECT_NE(planner.choose({Collective::kAllReduce, 1025}).plan, plan);
  EXPECT_NE(planner.choose({Collective::kBroadcast, 1000, 1}).plan,
            planner.choose({Collective::kBroadcast, 1000, 2}).plan);
}

TEST(Planner, IsSafeToShareBetweenThreads) {
  Planner planner(0, 4, true, "");
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
  Planner planner(0, 4, true, " ring , binomial_tree");
  for (size_t bytes : {size_t{4}, 16 * kMiB}) {
    const std::string chosen = algorithm(planner, {Collective::kAllReduce, bytes});
    EXPECT_TRUE(chosen == "ring" || chosen == "binomial_tree") << chosen;
    EXPECT_EQ(algorithm(planner, {Collective::kBroadcast, bytes, 0}), "binomial_tree");
    EXPECT_EQ(algorithm(planner, {Collective::kAllGather, bytes}), "ring");
  }
  EXPECT_EQ(algorithm(planner, {Collective::kBarrier}), "dissemination");
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
}

TEST(Planner, InvalidRanksAndRootsAreRefused) {
  EXPECT_THROW(Planner(2, 2, true, ""), Error);
  EXPECT_THROW(Planner(-1, 2, true, ""), Error);
  EXPECT_THROW(Planner(0, 0, true, ""), Error);
  Planner planner(0, 2, true, "");
  EXPECT_THROW(planner.choose({Collective::kBroadcast, 4, 2}), Error);
  EXPECT_THROW(planner.choose({Collective::kReduce, 4}), Error);
}

}  // namespace
}  // namespace q7x2
