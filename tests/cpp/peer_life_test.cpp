#include "transport/peer_life.h"

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

using State = PeerLife::State;

const PeerLife::TimePoint kStart{std::chrono::hours(1)};
constexpr std::chrono::milliseconds kTick{1};

TEST(PeerLife, IsAliveAtFirst) {
  const PeerLife life;
  EXPECT_EQ(life.state(), State::kAlive);
  EXPECT_TRUE(life.is_alive());
  EXPECT_FALSE(life.is_due(kStart + std::chrono::hours(1)));
  EXPECT_EQ(life.reason(), "");
}

TEST(PeerLife, ASuspectIsDueWhenItsGraceIsOver) {
  PeerLife life;
  EXPECT_TRUE(life.suspect(kStart, "its process has ended"));
  EXPECT_EQ(life.state(), State::kSuspect);
  EXPECT_FALSE(life.is_due(kStart + PeerLife::kGrace - kTick));
  EXPECT_TRUE(life.is_due(kStart + PeerLife::kGrace));
}

TEST(PeerLife, TheFirstSuspicionStays) {
  PeerLife life;
  life.suspect(kStart, "its process has ended");
  EXPECT_FALSE(life.suspect(kStart + kTick, "its connection broke"));
  EXPECT_EQ(life.reason(), "its process has ended");
  EXPECT_TRUE(life.is_due(kStart + PeerLife::kGrace));
}

TEST(PeerLife, TheDeadStayDead) {
  PeerLife life;
  life.suspect(kStart, "its connection broke");
  life.die();
  EXPECT_EQ(life.state(), State::kDead);
  EXPECT_FALSE(life.is_due(kStart + PeerLife::kGrace)) << "it dies once";
  EXPECT_FALSE(life.suspect(kStart, "again"));
  EXPECT_EQ(life.state(), State::kDead);
  EXPECT_EQ(life.reason(), "its connection broke");
}

}  // namespace
}  // namespace q7x2
