// One rank's choices, published and adopted.
#include "plan/plan_book.h"

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

PlanBook book(const FabricPtr& fabric, int rank, const std::string& forced = "") {
  return {std::make_shared<Planner>(rank, fabric, forced), rank, fabric->world_size(),
          "build " + std::to_string(rank)};
}

Bytes published(PlanBook& leader, const CallShape& shape) {
  Bytes bytes(PlanBook::kBytes);
  leader.publish(*leader.open(shape), bytes);
  return bytes;
}

std::string refusal(PlanBook& follower, const CallShape& shape, const Bytes& bytes,
                    ErrorCode code) {
  try {
    follower.settle(*follower.open(shape), bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "";
}

TEST(PlanBook, OthersAdoptWhatRankZeroChooses) {
  for (const uint64_t seed : {1, 2, 3}) {
    const auto fabric = std::make_shared<const Fabric>(random_fabric(9, seed));
    PlanBook leader = book(fabric, 0);
    for (const Collective collective :
         {Collective::kAllReduce, Collective::kBroadcast, Collective::kAllGather,
          Collective::kReduceScatter, Collective::kAllToAll, Collective::kBarrier}) {
      for (const size_t bytes : {size_t{4}, size_t{1} << 20, CallShape::kUneven}) {
        const CallShape shape{collective, bytes, is_rooted(collective) ? 3 : -1};
        const Choice& chosen = leader.open(shape)->choice();
        const Bytes publication = published(leader, shape);
        for (const int rank : {1, 8}) {
          // Whatever is forced here, rank 0's choice counts.
          PlanBook follower = book(fabric, rank, "direct");
          const auto page = follower.open(shape);
          EXPECT_FALSE(page->is_settled());
          follower.settle(*page, publication);
          ASSERT_TRUE(page->is_settled());
          EXPECT_EQ(page->choice().plan->algorithm, chosen.plan->algorithm);
          EXPECT_EQ(page->choice().plan->rank, rank);
          EXPECT_EQ(page->choice().slice_bytes, chosen.slice_bytes);
          EXPECT_EQ(page->choice().part_bytes, chosen.part_bytes);
          EXPECT_EQ(page->choice().window, chosen.window);
        }
      }
    }
  }
}

TEST(PlanBook, OnlyTheFirstCallOfAKindAnnounces) {
  PlanBook leader = book(std::make_shared<const Fabric>(Fabric::uniform(4, 1, 1e9)), 0);
  EXPECT_TRUE(leader.open({Collective::kAllReduce, 1000})->announce());
  EXPECT_FALSE(leader.open({Collective::kAllReduce, 1024})->announce()) << "the same size class";
  EXPECT_TRUE(leader.open({Collective::kAllReduce, 1025})->announce());
  EXPECT_FALSE(leader.open_alone({Collective::kAllReduce, 4})->announce());
  leader.open({Collective::kAllReduce, 1025})->take_back();
  EXPECT_TRUE(leader.open({Collective::kAllReduce, 1025})->announce());
  leader.clear();
  EXPECT_TRUE(leader.open({Collective::kAllReduce, 1000})->announce());
  EXPECT_FALSE(leader.courier()->announce());
}

// The function that says what coding costs belongs to one call, and may not be there later.
TEST(PlanBook, WhatCodingCostsIsAskedOfNoCallThatIsOver) {
  const auto fabric = std::make_shared<const Fabric>(Fabric::uniform(4, 1, 1e9));
  PlanBook leader = book(fabric, 0);
  PlanBook follower = book(fabric, 1);
  int asked = 0;
  CallShape shape{Collective::kAllReduce, 1 << 20};
  shape.codec = "int8";
  shape.dtype = DType::kFloat32;
  shape.coding = [&](const Fabric&) {
    ++asked;
    return CodingCost{};
  };
  const auto page = follower.open(shape);
  EXPECT_EQ(asked, 0) << "only rank 0 plans";
  const auto chosen = leader.open(shape);
  EXPECT_EQ(asked, 1);
  Bytes publication(PlanBook::kBytes);
  leader.publish(*chosen, publication);
  follower.settle(*page, publication);
  EXPECT_TRUE(page->is_settled());
  EXPECT_EQ(asked, 1);
}

TEST(PlanBook, AnotherScheduleIsAnErrorThatNamesBothSides) {
  PlanBook leader = book(std::make_shared<const Fabric>(Fabric::uniform(4, 2, 1e9)), 0, "ring");
  Fabric other = Fabric::uniform(4, 2, 1e9);
  std::swap(other.host_of[1], other.host_of[2]);
  PlanBook follower = book(std::make_shared<const Fabric>(other), 1);
  const CallShape shape{Collective::kAllReduce, 1 << 20};
  const std::string text = refusal(follower, shape, published(leader, shape), ErrorCode::kMismatch);
  for (const char* part : {"ring", "another Schedule", "build 0", "build 1", "all_reduce"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

TEST(PlanBook, BytesThatAreNoPublicationAreRefused) {
  const auto fabric = std::make_shared<const Fabric>(Fabric::uniform(4, 1, 1e9));
  PlanBook leader = book(fabric, 0);
  PlanBook follower = book(fabric, 1);
  const CallShape shape{Collective::kAllReduce, 1 << 20};
  const Bytes good = published(leader, shape);
  EXPECT_NE(refusal(follower, shape, Bytes(PlanBook::kBytes), ErrorCode::kInternal), "");
  EXPECT_NE(refusal(follower, shape, Bytes(7), ErrorCode::kInternal), "");
  std::mt19937_64 random(17);
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    Bytes bad = good;
    bad[random() % 64] ^= std::byte(1U << random() % 8);
    PlanBook other = book(fabric, 1);
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
