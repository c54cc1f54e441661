#include "transport/peer/peer_life.h"

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
  for (const Evidence evidence : {Evidence::kProcessEnded, Evidence::kConnectionBroke}) {
    PeerLife life;
    EXPECT_TRUE(life.suspect(kStart, evidence, "its process has ended"));
    EXPECT_EQ(life.state(), State::kSuspect);
    EXPECT_FALSE(life.is_due(kStart + PeerLife::grace(evidence) - kTick));
    EXPECT_TRUE(life.is_due(kStart + PeerLife::grace(evidence)));
  }
}

TEST(PeerLife, TheFirstSuspicionStays) {
  PeerLife life;
  life.suspect(kStart, Evidence::kProcessEnded, "its process has ended");
  EXPECT_FALSE(life.suspect(kStart + kTick, Evidence::kConnectionBroke, "its connection broke"));
  EXPECT_FALSE(life.suspect(kStart + kTick, Evidence::kProcessEnded, "it ended again"));
  EXPECT_EQ(life.reason(), "its process has ended");
  EXPECT_TRUE(life.is_due(kStart + PeerLife::grace(Evidence::kProcessEnded)));
}

TEST(PeerLife, EvidenceByWhichItDiesEarlierCounts) {
  PeerLife life;
  life.suspect(kStart, Evidence::kConnectionBroke, "its connection broke");
  EXPECT_TRUE(life.suspect(kStart + kTick, Evidence::kProcessEnded, "its process has ended"));
  EXPECT_EQ(life.reason(), "its process has ended");
  EXPECT_TRUE(life.is_due(kStart + kTick + PeerLife::grace(Evidence::kProcessEnded)));
}

TEST(PeerLife, ASilentPeerHasNoGrace) {
  PeerLife life;
  life.suspect(kStart, Evidence::kSilent, "its host has not answered for 2.0 s");
  EXPECT_TRUE(life.is_due(kStart));
}

TEST(PeerLife, TheDeadStayDead) {
  PeerLife life;
  life.suspect(kStart, Evidence::kConnectionBroke, "its connection broke");
  life.die();
  EXPECT_EQ(life.state(), State::kDead);
  EXPECT_FALSE(life.is_due(kStart + std::chrono::hours(1))) << "it dies once";
  EXPECT_FALSE(life.suspect(kStart, Evidence::kSilent, "again"));
  EXPECT_EQ(life.state(), State::kDead);
  EXPECT_EQ(life.reason(), "its connection broke");
}

}  // namespace
}  // namespace q7x2
