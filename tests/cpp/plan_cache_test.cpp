// One rank's choices, published and adopted.
#include "plan/choose/plan_cache.h"

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "random_fabric.h"

namespace q7x2 {
namespace {

using FabricPtr = std::shared_ptr<const Fabric>;
using Bytes = std::vector<std::byte>;

PlanCache plans(const FabricPtr& fabric, int rank, const std::string& forced = "") {
  return {std::make_shared<Planner>(rank, fabric, forced), rank, fabric->world_size(),
          "build " + std::to_string(rank)};
}

Bytes published(PlanCache& leader, const CallShape& shape) {
  Bytes bytes(Publication::kBytes);
  leader.publish(*leader.open(shape), bytes);
  return bytes;
}

std::string refusal(PlanCache& follower, const CallShape& shape, const Bytes& bytes,
                    ErrorCode code) {
  try {
    follower.settle(*follower.open(shape), bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "";
}

TEST(PlanCache, OthersAdoptWhatRankZeroChooses) {
  for (const uint64_t seed : {1, 2, 3}) {
    const auto fabric = std::make_shared<const Fabric>(random_fabric(9, seed));
    PlanCache leader = plans(fabric, 0);
    for (const Collective collective :
         {Collective::kAllReduce, Collective::kBroadcast, Collective::kAllGather,
          Collective::kReduceScatter, Collective::kAllToAll, Collective::kBarrier}) {
      for (const size_t bytes : {size_t{4}, size_t{1} << 20, CallShape::kUneven}) {
        const CallShape shape{collective, bytes, is_rooted(collective) ? 3 : -1};
        const Choice& chosen = leader.open(shape)->choice();
        const Bytes publication = published(leader, shape);
        for (const int rank : {1, 8}) {
          // Whatever is forced here, rank 0's choice counts.
          PlanCache follower = plans(fabric, rank, "direct");
          const auto entry = follower.open(shape);
          EXPECT_FALSE(entry->is_settled());
          follower.settle(*entry, publication);
          ASSERT_TRUE(entry->is_settled());
          EXPECT_EQ(entry->choice().plan->algorithm, chosen.plan->algorithm);
          EXPECT_EQ(entry->choice().plan->rank, rank);
          EXPECT_EQ(entry->choice().slice_bytes, chosen.slice_bytes);
          EXPECT_EQ(entry->choice().part_bytes, chosen.part_bytes);
          EXPECT_EQ(entry->choice().window, chosen.window);
        }
      }
    }
  }
}

using Prerequisite = PlanCache::Entry::Prerequisite;

TEST(PlanCache, CallsOfAKindShareAPage) {
  PlanCache leader = plans(std::make_shared<const Fabric>(Fabric::uniform(4, 1, 1e9)), 0);
  const auto entry = leader.open({Collective::kAllReduce, 1000});
  EXPECT_EQ(leader.open({Collective::kAllReduce, 1024}), entry) << "the same size class";
  EXPECT_NE(leader.open({Collective::kAllReduce, 1025}), entry);
  EXPECT_NE(leader.open_alone({Collective::kAllReduce, 1000}), entry);
  leader.clear();
  EXPECT_NE(leader.open({Collective::kAllReduce, 1000}), entry);
}

// Ranks may submit many calls before rank 0's choice arrives. So what precedes a call follows from
// its number alone.
TEST(PlanCache, WhatPrecedesACallIsTheSameOnAllRanks) {
  const auto fabric = std::make_shared<const Fabric>(Fabric::uniform(4, 1, 1e9));
  PlanCache leader = plans(fabric, 0);
  PlanCache follower = plans(fabric, 1);
  int reviews = 0;
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kBroadcast, Collective::kBarrier}) {
    const CallShape shape{collective, 1000, is_rooted(collective) ? 0 : -1};
    for (uint64_t number = 0; number < 300; ++number) {
      const Prerequisite first = leader.open(shape)->prerequisite_of(number);
      EXPECT_EQ(follower.open(shape)->prerequisite_of(number), first);
      EXPECT_EQ(first == Prerequisite::kAnnouncement, number == 0);
      reviews += first == Prerequisite::kTuningRound;
    }
  }
  EXPECT_EQ(reviews, 8) << "of the all-reduce, at 24, 48, 128, 146, 170, 256, 274 and 298";
  EXPECT_EQ(leader.open_alone({Collective::kAllReduce, 4})->prerequisite_of(0),
            Prerequisite::kNone);
  EXPECT_EQ(leader.courier()->prerequisite_of(0), Prerequisite::kNone);
  EXPECT_EQ(leader.tuner()->prerequisite_of(24), Prerequisite::kNone);
}

/// Makes `count` calls; the choice with index `fastest` is twice as fast as the others.
void make_calls(PlanCache& plans, PlanCache::Entry& entry, uint64_t count, size_t fastest) {
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t number = entry.calls();
    if (entry.prerequisite_of(number) == Prerequisite::kTuningRound) {
      entry.tune(number, entry.refinement().figures());
    }
    entry.count();
    const size_t index = entry.refinement().choice_of(number);
    EXPECT_TRUE(plans.choice(entry, index).plan);
    if (entry.refinement().measures(number)) {
      entry.record(index, 1 << 20, index == fastest ? 1'000'000 : 2'000'000);
    }
  }
}

TEST(PlanCache, CallsShowWhichChoiceIsBest) {
  const auto fabric = std::make_shared<const Fabric>(Fabric::uniform(8, 1, 1e9));
  const CallShape shape{Collective::kAllReduce, 1 << 20};
  PlanCache leader = plans(fabric, 0);
  const Bytes publication = published(leader, shape);
  for (const int rank : {0, 5}) {
    PlanCache own = plans(fabric, rank);
    const auto entry = own.open(shape);
    own.settle(*entry, publication);
    const size_t last = own.records()[0].revisions.back().proposals.size() - 1;
    ASSERT_GE(last, 1U);
    make_calls(own, *entry, 60, last);
    const PlanCache::Record record = own.records()[0];
    EXPECT_EQ(record.calls, 60U);
    EXPECT_EQ(record.revisions.back().events.back().choices, std::vector{last});
    EXPECT_EQ(own.choice(*entry, last).plan->algorithm,
              record.revisions.back().proposals[last].algorithm);
    EXPECT_EQ(own.choice(*entry, last).plan->rank, rank);
  }
}

// Forced algorithms, measured times, codecs and calls whose times say little leave one choice.
TEST(PlanCache, RefinesOnlyWhatIsFree) {
  Fabric network = Fabric::uniform(8, 1, 1e9);
  const CallShape shape{Collective::kAllReduce, 1 << 20};
  const auto choices = [&](PlanCache&& of, const CallShape& call) {
    of.open(call);
    return of.records()[0].revisions.back().proposals.size();
  };
  const auto fabric = std::make_shared<const Fabric>(network);
  const auto planner = std::make_shared<Planner>(0, fabric, "");
  EXPECT_GT(choices({planner, 0, 8, "a test"}, shape), 1U);
  EXPECT_EQ(choices({planner, 0, 8, "a test", false}, shape), 1U);
  EXPECT_EQ(choices(plans(fabric, 0, "ring,sra"), shape), 1U);
  EXPECT_EQ(choices({planner, 0, 8, "a test"}, {Collective::kBroadcast, 1 << 20, 0}), 1U);
  EXPECT_EQ(choices({planner, 0, 8, "a test"}, {Collective::kAllToAll, CallShape::kUneven}), 1U);
  CallShape forced = shape;
  forced.algorithms = "ring,sra";
  EXPECT_EQ(choices({planner, 0, 8, "a test"}, forced), 1U);
  network.tuned.push_back({.collective = Collective::kAllReduce,
                           .ranks = 8,
                           .bytes = 1 << 20,
                           .algorithm = "ring",
                           .slice_bytes = 1 << 20,
                           .window = 4,
                           .seconds = 0.1});
  EXPECT_EQ(choices(plans(std::make_shared<const Fabric>(network), 0), shape), 1U);
}

// The function that says what coding costs belongs to one call, and may not be there later.
TEST(PlanCache, WhatCodingCostsIsAskedOfNoCallThatIsOver) {
  const auto fabric = std::make_shared<const Fabric>(Fabric::uniform(4, 1, 1e9));
  PlanCache leader = plans(fabric, 0);
  PlanCache follower = plans(fabric, 1);
  int asked = 0;
  CallShape shape{Collective::kAllReduce, 1 << 20};
  shape.codec = "int8";
  shape.dtype = DType::kFloat32;
  shape.coding = [&](const Fabric&) {
    ++asked;
    return CodingCost{};
  };
  const auto entry = follower.open(shape);
  EXPECT_EQ(asked, 0) << "only rank 0 plans";
  const auto chosen = leader.open(shape);
  EXPECT_EQ(asked, 1);
  Bytes publication(Publication::kBytes);
  leader.publish(*chosen, publication);
  follower.settle(*entry, publication);
  EXPECT_TRUE(entry->is_settled());
  EXPECT_EQ(asked, 1);
}

TEST(PlanCache, AnotherScheduleIsAnErrorThatNamesBothSides) {
  PlanCache leader = plans(std::make_shared<const Fabric>(Fabric::uniform(4, 2, 1e9)), 0, "ring");
  Fabric other = Fabric::uniform(4, 2, 1e9);
  std::swap(other.host_of[1], other.host_of[2]);
  PlanCache follower = plans(std::make_shared<const Fabric>(other), 1);
  const CallShape shape{Collective::kAllReduce, 1 << 20};
  const std::string text = refusal(follower, shape, published(leader, shape), ErrorCode::kMismatch);
  for (const char* part : {"ring", "another Schedule", "build 0", "build 1", "all_reduce"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

TEST(PlanCache, CallsThatWereSubmittedKeepTheirFabric) {
  const auto before = std::make_shared<const Fabric>(random_fabric(9, 1));
  const auto after = std::make_shared<const Fabric>(random_fabric(9, 2));
  PlanCache leader = plans(before, 0);
  PlanCache follower = plans(before, 5);
  const CallShape shape{Collective::kAllReduce, 1 << 20};
  const Bytes early = published(leader, shape);
  const auto submitted = follower.open(shape);
  for (PlanCache* each : {&leader, &follower}) each->set_fabric(after);
  follower.settle(*submitted, early);
  EXPECT_EQ(submitted->fabric(), before);

  const auto entry = follower.open(shape);
  EXPECT_NE(entry, submitted);
  follower.settle(*entry, published(leader, shape));
  EXPECT_EQ(entry->fabric(), after);
  EXPECT_EQ(follower.fabric(), after);
  EXPECT_EQ(follower.planner()->fabric(), after);
  EXPECT_THROW(leader.set_fabric(std::make_shared<const Fabric>(random_fabric(8, 2))), Error);
}

TEST(PlanCache, BytesThatAreNoPublicationAreRefused) {
  const auto fabric = std::make_shared<const Fabric>(Fabric::uniform(4, 1, 1e9));
  PlanCache leader = plans(fabric, 0);
  PlanCache follower = plans(fabric, 1);
  const CallShape shape{Collective::kAllReduce, 1 << 20};
  const Bytes good = published(leader, shape);
  EXPECT_NE(refusal(follower, shape, Bytes(Publication::kBytes), ErrorCode::kInternal), "");
  EXPECT_NE(refusal(follower, shape, Bytes(7), ErrorCode::kInternal), "");
  std::mt19937_64 random(17);
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    Bytes bad = good;
    bad[random() % 64] ^= std::byte(1U << random() % 8);
    PlanCache other = plans(fabric, 1);
    try {
      other.settle(*other.open(shape), bad);
    } catch (const Error&) {
      ++refused;
      EXPECT_FALSE(other.open(shape)->is_settled());
    }
  }
  EXPECT_EQ(refused, 2000);
  follower.settle(*follower.open(shape), good);
}

}  // namespace
}  // namespace q7x2
