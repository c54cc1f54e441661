// Which edges of a compressed call are coded, over invented Fabrics: what a wish promises holds on
// each of them.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "executor/collective/plan_call.h"
#include "kernels/codec/codec.h"
#include "level.h"
#include "plan/choose/planner.h"
#include "planning.h"
#include "random_fabric.h"

namespace q7x2 {
namespace {

using test::FabricPtr;
using test::kGigabit;
using test::kKiB;
using test::kMiB;

constexpr EdgeWish kWishes[] = {EdgeWish::kAuto, EdgeWish::kAll, EdgeWish::kHost, EdgeWish::kRack,
                                EdgeWish::kSlow};
// Times that differ by less are equal: see sort_ratings.
constexpr double kEqual = 1.002;

/// A codec that makes messages four times shorter, and encodes so fast on a core.
CallShape coded_call(EdgeWish edges, double rate, size_t bytes,
                     Collective collective = Collective::kAllReduce) {
  CallShape shape{collective, bytes};
  shape.codec = "int8";
  shape.dtype = DType::kFloat32;
  shape.edges = edges;
  shape.coding = [rate](const Fabric&) {
    return CodingCost{.messages = {{.ratio = 0.25, .encode_rate = rate, .decode_rate = rate}}};
  };
  return shape;
}

Choice choice_of(const FabricPtr& fabric, const CallShape& shape) {
  return Planner(0, fabric, "").choose(shape);
}

/// The fewer zones there are, the fewer edges lead from one to another. Where each host has one
/// rank, "hosts" and "all" are the same.
size_t zones_of(const Fabric& fabric, const Choice& choice) {
  return EdgeCoding(choice.plan->edges, fabric.world_size(), &fabric).num_zones();
}

/// Two racks of two hosts with two ranks each, whose cables are slower than their hosts.
FabricPtr two_racks(double uplink) {
  Fabric fabric = Fabric::uniform(4, 2, kGigabit);
  fabric.racks = {{"a", uplink, uplink}, {"b", uplink, uplink}};
  for (size_t host = 0; host < 4; ++host) fabric.hosts[host].rack = static_cast<int>(host / 2);
  return std::make_shared<const Fabric>(std::move(fabric));
}

// "auto" always codes something, so a wish that codes nothing on a Fabric may be faster.
TEST(EdgeWishes, AutoIsNeverPredictedSlowerThanAnotherWishThatCodes) {
  for (const int ranks : {2, 3, 4, 6, 8}) {
    for (uint64_t seed = 0; seed < test::at_level<uint64_t>(12, 40); ++seed) {
      const auto fabric = std::make_shared<const Fabric>(random_fabric(ranks, seed));
      for (const size_t bytes : {64 * kKiB, 4 * kMiB}) {
        for (const double rate : {5e6, 4e9}) {
          SCOPED_TRACE(std::to_string(ranks) + " ranks, seed " + std::to_string(seed) + ", " +
                       std::to_string(bytes) + " bytes, codec of " + std::to_string(rate));
          const Choice chosen = choice_of(fabric, coded_call(EdgeWish::kAuto, rate, bytes));
          EXPECT_NE(chosen.plan->edges, Edges::kNone);
          const Choice slow = choice_of(fabric, coded_call(EdgeWish::kSlow, rate, bytes));
          EXPECT_LE(slow.seconds, chosen.seconds * kEqual);
          std::vector<Choice> others;
          double fastest = chosen.seconds;
          for (const EdgeWish wish : {EdgeWish::kAll, EdgeWish::kHost, EdgeWish::kRack}) {
            const Choice other = choice_of(fabric, coded_call(wish, rate, bytes));
            EXPECT_LE(slow.seconds, other.seconds * kEqual) << to_string(wish);
            if (other.plan->edges == Edges::kNone) continue;
            fastest = std::min(fastest, other.seconds);
            others.push_back(other);
          }
          EXPECT_LE(chosen.seconds, fastest * kWorthMoreLoss * kEqual);
          for (const Choice& other : others) {
            if (zones_of(*fabric, other) >= zones_of(*fabric, chosen)) continue;
            EXPECT_GT(other.seconds * kEqual, fastest * kWorthMoreLoss)
                << to_string(other.plan->edges) << " lose less in about the same time";
          }
        }
      }
    }
  }
}

TEST(EdgeWishes, AutoCodesWhatCrossesASlowRackCable) {
  const FabricPtr fabric = two_racks(kGigabit / 10);
  for (const auto op :
       {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather}) {
    const Choice chosen = choice_of(fabric, coded_call(EdgeWish::kAuto, 4e9, 4 * kMiB, op));
    const Choice dense = choice_of(fabric, {op, 4 * kMiB});
    EXPECT_LT(chosen.seconds, dense.seconds / 2) << to_string(op);
  }
  EXPECT_EQ(choice_of(fabric, coded_call(EdgeWish::kAuto, 4e9, 4 * kMiB)).plan->edges,
            Edges::kRacks);
}

TEST(EdgeWishes, AutoCodesAllMessagesOfOneHost) {
  for (const double rate : {1e7, 1e12}) {
    const Choice chosen = choice_of(test::one_host(4), coded_call(EdgeWish::kAuto, rate, kMiB));
    EXPECT_EQ(chosen.plan->edges, Edges::kAll) << rate;
  }
}

TEST(EdgeWishes, TheFirstCandidateIsTheChoice) {
  for (const EdgeWish wish : kWishes) {
    const FabricPtr fabric = two_racks(kGigabit / 10);
    const CallShape shape = coded_call(wish, 4e9, 4 * kMiB);
    const std::vector<Candidate> candidates = Planner(0, fabric, "").explain(shape);
    const Choice chosen = choice_of(fabric, shape);
    EXPECT_EQ(candidates[0].edges, chosen.plan->edges) << to_string(wish);
    EXPECT_EQ(candidates[0].algorithm, chosen.plan->algorithm) << to_string(wish);
    for (size_t i = 2; i < candidates.size(); ++i) {
      EXPECT_LE(candidates[i - 1].seconds(), candidates[i].seconds() * kEqual) << to_string(wish);
    }
  }
}

// Ranks that sum first and then compress would have one vote between them.
TEST(EdgeWishes, EachRankHasAVote) {
  const auto codec = Codec::make("sign");
  for (const FabricPtr& fabric : {two_racks(kGigabit), two_racks(kGigabit / 10)}) {
    for (const auto op : {Collective::kAllReduce, Collective::kReduceScatter}) {
      CallShape shape{op, 64 * kKiB};
      add_codec(shape, *codec, DType::kFloat32, EdgeWish::kAuto);
      EXPECT_EQ(choice_of(fabric, shape).plan->edges, Edges::kAll);
    }
  }
}

}  // namespace
}  // namespace q7x2
