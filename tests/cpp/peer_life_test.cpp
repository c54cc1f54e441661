// The two state machines of PeerLife: every event in every state.
#include "transport/peer/peer_life.h"

#include <array>
#include <vector>

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

using Connection = PeerLife::Connection;
using Process = PeerLife::Process;

const PeerLife::TimePoint kStart{std::chrono::hours(1)};
constexpr std::chrono::milliseconds kTick{1};
constexpr std::array kAll{Evidence::kProcessEnded,    Evidence::kEndedElsewhere,
                          Evidence::kConnectionBroke, Evidence::kSilent,
                          Evidence::kPathToBlocked,   Evidence::kPathFromBlocked,
                          Evidence::kShmBlocked,      Evidence::kGivenUp,
                          Evidence::kRenewed,         Evidence::kLate};

bool is_end(Evidence evidence) {
  return evidence == Evidence::kProcessEnded || evidence == Evidence::kEndedElsewhere;
}

PeerLife lost_by(Evidence evidence) {
  PeerLife life;
  life.suspect(kStart, evidence, "lost");
  return life;
}

PeerLife dead_by(Evidence evidence) {
  PeerLife life = lost_by(evidence);
  life.declare_dead();
  return life;
}

TEST(PeerLife, IsAliveAndUnseenAtFirst) {
  const PeerLife life;
  EXPECT_EQ(life.connection(), Connection::kAlive);
  EXPECT_EQ(life.process(), Process::kUnseen);
  EXPECT_FALSE(life.is_due(kStart + std::chrono::hours(1)));
  EXPECT_FALSE(life.must_give_notice());
  EXPECT_EQ(life.reason(), "");
  for (const Evidence evidence : kAll) EXPECT_FALSE(life.is_lost_by(evidence));
}

// ------------------------------------------------------------------------------- the connection

TEST(PeerLife, EveryEvidenceMakesASuspectThatDiesAfterItsGrace) {
  for (const Evidence evidence : kAll) {
    PeerLife life;
    EXPECT_TRUE(life.suspect(kStart, evidence, "lost"));
    EXPECT_EQ(life.connection(), Connection::kSuspect);
    EXPECT_TRUE(life.is_lost_by(evidence));
    EXPECT_EQ(life.dies_at(), kStart + PeerLife::grace(evidence));
    EXPECT_FALSE(life.is_due(life.dies_at() - kTick));
    EXPECT_TRUE(life.is_due(life.dies_at()));
    EXPECT_TRUE(life.declare_dead());
    EXPECT_EQ(life.connection(), Connection::kDead);
    EXPECT_EQ(life.reason(), "lost");
  }
}

TEST(PeerLife, NobodyDiesWhoIsNoSuspect) {
  PeerLife life;
  EXPECT_FALSE(life.declare_dead());
  EXPECT_TRUE(life.is_alive());
  life.reach();
  EXPECT_FALSE(life.declare_dead());
  EXPECT_TRUE(life.is_alive());
}

TEST(PeerLife, TheEvidenceByWhichItDiesFirstCounts) {
  for (const Evidence first : kAll) {
    for (const Evidence second : kAll) {
      PeerLife life = lost_by(first);
      life.suspect(kStart + kTick, second, "again");
      const bool is_sooner = kTick + PeerLife::grace(second) < PeerLife::grace(first);
      EXPECT_TRUE(life.is_lost_by(is_sooner ? second : first));
      EXPECT_EQ(life.reason(), is_sooner ? "again" : "lost");
      EXPECT_EQ(life.dies_at(),
                kStart + (is_sooner ? kTick + PeerLife::grace(second) : PeerLife::grace(first)));
    }
  }
}

TEST(PeerLife, NothingRevivesTheDead) {
  for (const Evidence death : kAll) {
    for (const Evidence later : kAll) {
      PeerLife life = dead_by(death);
      life.reach();
      life.suspect(kStart, later, "again");
      EXPECT_FALSE(life.declare_dead()) << "it dies once";
      EXPECT_TRUE(life.is_dead());
      EXPECT_TRUE(life.is_lost_by(death));
      EXPECT_EQ(life.reason(), "lost");
      EXPECT_FALSE(life.is_due(kStart + std::chrono::hours(1)));
    }
  }
}

TEST(PeerLife, WhoGaveNoticeIsGivenNone) {
  for (const Evidence evidence : kAll) {
    const bool knows = evidence == Evidence::kGivenUp || evidence == Evidence::kShmBlocked ||
                       evidence == Evidence::kPathFromBlocked || evidence == Evidence::kRenewed;
    EXPECT_EQ(dead_by(evidence).must_give_notice(), !knows && !is_end(evidence));
  }
}

// ---------------------------------------------------------------------------------- the process

TEST(PeerLife, AProcessThatIsReachedRuns) {
  PeerLife life;
  EXPECT_FALSE(life.was_seen());
  life.reach();
  EXPECT_EQ(life.process(), Process::kRunning);
  EXPECT_TRUE(life.was_seen());
}

TEST(PeerLife, OnlyTheEndOfAProcessEndsIt) {
  for (const Evidence evidence : kAll) {
    EXPECT_EQ(lost_by(evidence).has_ended(), is_end(evidence));
    EXPECT_EQ(dead_by(evidence).has_ended(), is_end(evidence));
  }
}

TEST(PeerLife, AnEndIsRememberedWithWhetherItWasSeenBefore) {
  for (const Evidence end : {Evidence::kProcessEnded, Evidence::kEndedElsewhere}) {
    PeerLife unseen;
    unseen.suspect(kStart, end, "its process has ended");
    EXPECT_EQ(unseen.process(), Process::kEndedUnseen);
    EXPECT_FALSE(unseen.was_seen());
    PeerLife seen;
    seen.reach();
    seen.suspect(kStart, end, "its process has ended");
    EXPECT_EQ(seen.process(), Process::kEnded);
    EXPECT_TRUE(seen.was_seen());
    for (PeerLife* const life : {&unseen, &seen}) {
      const Process ended = life->process();
      life->reach();
      for (const Evidence later : kAll) life->suspect(kStart, later, "again");
      EXPECT_EQ(life->process(), ended) << "for good";
    }
  }
}

TEST(PeerLife, TheEndOfAProcessIsNewsOfADeadConnectionOnce) {
  PeerLife life = dead_by(Evidence::kConnectionBroke);
  EXPECT_TRUE(life.must_give_notice());
  EXPECT_TRUE(life.suspect(kStart, Evidence::kEndedElsewhere, "its process has ended"));
  EXPECT_TRUE(life.has_ended());
  EXPECT_FALSE(life.must_give_notice()) << "to whom?";
  EXPECT_FALSE(life.suspect(kStart, Evidence::kProcessEnded, "its process has ended"));
  EXPECT_EQ(life.reason(), "lost");
}

TEST(PeerLife, SharedMemoryThatIsBlockedStaysSo) {
  PeerLife life = dead_by(Evidence::kShmBlocked);
  EXPECT_TRUE(life.is_shm_blocked());
  EXPECT_TRUE(life.was_seen()) << "it said so";
  life.reach();
  EXPECT_TRUE(life.is_shm_blocked());
  const PeerLife next = life.next();
  EXPECT_TRUE(next.is_alive());
  EXPECT_TRUE(next.is_shm_blocked());
  life.suspect(kStart, Evidence::kProcessEnded, "its process has ended");
  EXPECT_EQ(life.process(), Process::kEnded);
}

TEST(PeerLife, TheNextConnectionBeginsAnew) {
  for (const Evidence evidence : kAll) {
    const PeerLife next = dead_by(evidence).next();
    EXPECT_TRUE(next.is_alive());
    EXPECT_EQ(next.process(),
              evidence == Evidence::kShmBlocked ? Process::kShmBlocked : Process::kUnseen);
    EXPECT_EQ(next.reason(), "");
  }
}

}  // namespace
}  // namespace q7x2
