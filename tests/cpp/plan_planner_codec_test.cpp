// How the planner chooses for calls with a codec: what it asks, and which edges it codes.
#include <algorithm>
#include <cstddef>
#include <memory>

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace q7x2
