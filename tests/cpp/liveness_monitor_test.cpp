// Heartbeats over the loopback, between monitors of one process: who is alive, has ended, has
// left, or is silent; and what strangers can do at the port.
#include "transport/peer/liveness_monitor.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "deaf_port.h"
#include "monitor_pair.h"
#include "scarce_files.h"
#include "silence.h"

namespace q7x2 {
namespace {

using test::deaf_target;
using test::DeafPort;
using test::eventually;
using test::kKey;
using test::kMe;
using test::kPeer;
using test::MonitorPair;
using test::Silence;
using test::target_of;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

TEST(LivenessMonitor, APeerThatRunsIsAlive) {
  const Silence silence("0.4");
  MonitorPair pair;
  pair.look_for(milliseconds(1500));
  EXPECT_TRUE(pair.findings.empty());
  // This process itself may not be run for a moment.
  EXPECT_TRUE(eventually([&] {
    pair.look();
    const auto now = Clock::now();
    return pair.heartbeat().answers(now) && !pair.heartbeat().is_out_of_reach(now);
  }));
}

TEST(LivenessMonitor, ALookIsNotNeededMoreOftenThanEightTimesInTheLimit) {
  const Silence silence("0.8");
  MonitorPair pair;
  pair.look_for(milliseconds(300));
  const auto now = Clock::now();
  pair.me->poll(now);
  EXPECT_GT(pair.me->due(), now);
  EXPECT_LE(pair.me->due(), now + milliseconds(101));
  // What the peer sends wakes nobody: it is read at the next look.
  int looks = 0;
  const auto end = now + milliseconds(1600);
  while (Clock::now() < end) {
    pollfd entry{pair.me->fd(), POLLIN, 0};
    if (::poll(&entry, 1, 5) > 0 || Clock::now() >= pair.me->due()) {
      pair.look();
      ++looks;
    }
  }
  EXPECT_LE(looks, 16 + 16) << "some more, if the machine is so slow that they knock";
  EXPECT_TRUE(pair.findings.empty());
}

TEST(LivenessMonitor, AStoppedProcessIsAlive) {
  const Silence silence("0.2");
  MonitorPair pair;
  pair.look_for(milliseconds(100));
  // The peer's own code does not run, its kernel does.
  const auto end = Clock::now() + milliseconds(1500);
  while (Clock::now() < end) {
    EXPECT_TRUE(pair.me->poll(Clock::now()).empty());
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_TRUE(eventually([&] {
    pair.me->poll(Clock::now());
    return pair.heartbeat().answers(Clock::now());
  }));
}

TEST(LivenessMonitor, AProcessThatIsStoppedBeforeItAnswersIsAlive) {
  const Silence silence("0.2");
  MonitorPair pair;
  const auto end = Clock::now() + milliseconds(1000);
  while (Clock::now() < end) {
    EXPECT_TRUE(pair.me->poll(Clock::now()).empty());
    std::this_thread::sleep_for(milliseconds(1));
  }
  pair.look_for(milliseconds(300));
  EXPECT_TRUE(pair.findings.empty());
}

TEST(LivenessMonitor, AProcessThatEndsIsNoticedAtOnce) {
  const Silence silence("60");
  MonitorPair pair;
  pair.look_for(milliseconds(100));
  pair.peer.reset();  // what the kernel does for a process that was killed: no word, sockets closed
  ASSERT_TRUE(eventually([&] {
    pair.look();
    return !pair.findings.empty();
  }));
  EXPECT_EQ(pair.findings[0].who, &pair.who);
  EXPECT_EQ(pair.findings[0].evidence, Evidence::kEndedElsewhere);
  EXPECT_EQ(pair.findings[0].reason, "its process has ended");
  EXPECT_TRUE(pair.findings[0].was_reached);
}

TEST(LivenessMonitor, AProcessThatLeavesInGoodOrderIsNoFailure) {
  const Silence silence("0.2");
  MonitorPair pair;
  pair.look_for(milliseconds(100));
  pair.peer->close();
  pair.peer.reset();
  pair.look_for(milliseconds(600));
  EXPECT_TRUE(pair.findings.empty());
  EXPECT_FALSE(pair.heartbeat().answers(Clock::now()));
  EXPECT_FALSE(pair.heartbeat().is_out_of_reach(Clock::now())) << "nobody watches it any more";
}

TEST(LivenessMonitor, ABreakNoticeIsHeardOnce) {
  LivenessMonitor me(kMe, kKey);
  LivenessMonitor peer(kPeer, kKey);
  HeartbeatTarget target = target_of(me, kMe);
  target.incarnation = 7;
  target.topic = HeartbeatHello::Topic::kShmBlocked;
  char who = 0;
  peer.call_port(target, &who, Clock::now());
  std::vector<HeartbeatHello> notices;
  ASSERT_TRUE(eventually([&] {
    EXPECT_TRUE(me.poll(Clock::now()).empty() && peer.poll(Clock::now()).empty());
    notices = me.take_break_notices();
    return !notices.empty();
  })) << "me does not even expect it";
  ASSERT_EQ(notices.size(), 1U);
  EXPECT_EQ(notices[0].sender, kPeer);
  EXPECT_EQ(notices[0].incarnation, 7U);
  EXPECT_EQ(notices[0].topic, HeartbeatHello::Topic::kShmBlocked);
  EXPECT_TRUE(me.take_break_notices().empty());
  EXPECT_EQ(peer.due(), LivenessMonitor::TimePoint::max()) << "it was said";
}

// The caller is not let connect before it hears so.
TEST(LivenessMonitor, ARequestForAdmissionIsOverWhenItIsGranted) {
  LivenessMonitor me(kMe, kKey);
  LivenessMonitor peer(kPeer, kKey);
  HeartbeatTarget target = target_of(me, kMe);
  target.topic = HeartbeatHello::Topic::kAdmit;
  peer.call_port(target, nullptr, Clock::now());
  std::vector<IpAddress> callers;
  ASSERT_TRUE(eventually([&] {
    EXPECT_TRUE(peer.poll(Clock::now()).empty());
    callers = me.take_admission_calls();
    return !callers.empty();
  }));
  EXPECT_EQ(callers, std::vector<IpAddress>{kLoopback});
  const auto end = Clock::now() + milliseconds(100);
  while (Clock::now() < end) {
    EXPECT_TRUE(peer.poll(Clock::now()).empty());
    EXPECT_TRUE(peer.asks_for_admission());
    std::this_thread::sleep_for(milliseconds(1));
  }
  me.admit_callers();
  EXPECT_TRUE(eventually([&] {
    EXPECT_TRUE(peer.poll(Clock::now()).empty());
    return !peer.asks_for_admission();
  }));
}

// A process that is asked may open its port soon. To refuse for long is an answer, too.
TEST(LivenessMonitor, ARequestForAdmissionThatIsRefusedIsMadeAgainForAWhile) {
  const uint16_t port = std::make_unique<LivenessMonitor>(kMe, kKey)->port();
  LivenessMonitor peer(kPeer, kKey);
  peer.call_port({.process = kMe,
                  .endpoint = {kLoopback, port},
                  .topic = HeartbeatHello::Topic::kAdmit,
                  .key = kKey},
                 nullptr, Clock::now());
  const auto began = Clock::now();
  ASSERT_TRUE(eventually([&] {
    EXPECT_TRUE(peer.poll(Clock::now()).empty());
    return !peer.asks_for_admission();
  }));
  EXPECT_GE(Clock::now() - began, PortCall::kPatience - milliseconds(100));
}

// It says so again: what could not be said at once is not forgotten.
TEST(LivenessMonitor, ABreakNoticeThatFindsNoFileIsSentLater) {
  LivenessMonitor me(kMe, kKey);
  LivenessMonitor peer(kPeer, kKey);
  HeartbeatTarget target = target_of(me, kMe);
  target.topic = HeartbeatHello::Topic::kBroken;
  char who = 0;
  {
    const test::NoMoreFiles none;
    peer.call_port(target, &who, Clock::now());
    EXPECT_LT(peer.due(), LivenessMonitor::TimePoint::max());
  }
  EXPECT_TRUE(eventually([&] {
    EXPECT_TRUE(peer.poll(Clock::now()).empty());
    return me.take_break_notices().size() == 1;
  }));
}

TEST(LivenessMonitor, ABreakNoticeToNobodySaysSo) {
  const uint16_t port = std::make_unique<LivenessMonitor>(kMe, kKey)->port();
  LivenessMonitor peer(kPeer, kKey);
  char who = 0;
  peer.call_port({.process = kMe,
                  .endpoint = {kLoopback, port},
                  .topic = HeartbeatHello::Topic::kBroken,
                  .key = kKey},
                 &who, Clock::now());
  std::vector<Finding> findings;
  ASSERT_TRUE(eventually([&] {
    findings = peer.poll(Clock::now());
    return !findings.empty();
  }));
  EXPECT_EQ(findings[0].who, &who);
  EXPECT_EQ(findings[0].evidence, Evidence::kEndedElsewhere);
  pollfd entry{peer.fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&entry, 1, 0), 0) << "it wakes nobody any more";
  EXPECT_TRUE(peer.poll(Clock::now()).empty());
}

TEST(LivenessMonitor, AHostThatNeverAnswersIsSilent) {
  const Silence silence("0.5");
  LivenessMonitor me(kMe, kKey);
  char who = 0;
  const auto start = Clock::now();
  const DeafPort deaf;
  me.watch_host(deaf_target(deaf), &who, start);
  std::vector<Finding> findings;
  ASSERT_TRUE(eventually([&] {
    findings = me.poll(Clock::now());
    return !findings.empty();
  }));
  EXPECT_GE(Clock::now() - start, milliseconds(475));
  EXPECT_TRUE(me.heartbeat(&who)->is_out_of_reach(Clock::now()));
  EXPECT_FALSE(findings[0].was_reached);
  EXPECT_EQ(findings[0].who, &who);
  EXPECT_EQ(findings[0].evidence, Evidence::kSilent);
  EXPECT_NE(findings[0].reason.find("has not answered for 0.5 s"), std::string::npos)
      << findings[0].reason;
}

TEST(LivenessMonitor, WithoutALimitNobodyIsSilent) {
  const Silence silence("0");
  LivenessMonitor me(kMe, kKey);
  char who = 0;
  auto now = Clock::now();
  const DeafPort deaf;
  me.watch_host(deaf_target(deaf), &who, now);
  for (int i = 0; i < 100; ++i) {
    now += std::chrono::minutes(1);
    EXPECT_TRUE(me.poll(now).empty());
  }
}

TEST(LivenessMonitor, APortThatRefusesIsAHostThatAnswers) {
  const Silence silence("0.2");
  LivenessMonitor me(kMe, kKey);
  uint16_t port = 0;
  {
    const LivenessMonitor gone(kPeer, kKey);
    port = gone.port();
  }
  char who = 0;
  me.watch_host({.process = kPeer, .endpoint = {kLoopback, port}}, &who, Clock::now());
  const auto end = Clock::now() + milliseconds(800);
  while (Clock::now() < end) {
    EXPECT_TRUE(me.poll(Clock::now()).empty());
    std::this_thread::sleep_for(milliseconds(1));
  }
}

TEST(LivenessMonitor, APortThatWasNamedLatelyAndRefusesIsAProcessThatHasEnded) {
  const Silence silence("60");
  LivenessMonitor me(kMe, kKey);
  uint16_t port = 0;
  {
    const LivenessMonitor gone(kPeer, kKey);
    port = gone.port();
  }
  char who = 0;
  me.watch_host({.process = kPeer, .endpoint = {kLoopback, port}}, &who, Clock::now(),
                /*believes_refusals=*/true);
  std::vector<Finding> findings;
  ASSERT_TRUE(eventually([&] {
    findings = me.poll(Clock::now());
    return !findings.empty();
  }));
  EXPECT_EQ(findings[0].evidence, Evidence::kEndedElsewhere);
  EXPECT_FALSE(findings[0].was_reached) << "it may have ended long ago";
}

TEST(LivenessMonitor, AProcessThatEndsBeforeItAnswersIsNoticedAtOnce) {
  const Silence silence("60");
  LivenessMonitor me(kMe, kKey);
  auto peer = std::make_unique<LivenessMonitor>(kPeer, kKey);  // it does not know this process yet
  char who = 0;
  me.watch_host(target_of(*peer, kPeer), &who, Clock::now(), /*believes_refusals=*/true);
  const auto end = Clock::now() + milliseconds(100);
  while (Clock::now() < end) {
    EXPECT_TRUE(me.poll(Clock::now()).empty());
    EXPECT_TRUE(peer->poll(Clock::now()).empty());
    std::this_thread::sleep_for(milliseconds(1));
  }
  peer.reset();
  std::vector<Finding> findings;
  ASSERT_TRUE(eventually([&] {
    findings = me.poll(Clock::now());
    return !findings.empty();
  }));
  EXPECT_EQ(findings[0].evidence, Evidence::kEndedElsewhere);
  EXPECT_TRUE(findings[0].was_reached);
}

TEST(LivenessMonitor, AnotherProcessAtThePortIsNotThePeer) {
  const Silence silence("0.4");
  LivenessMonitor me(kMe, kKey);
  auto stranger = std::make_unique<LivenessMonitor>(33, kKey);
  stranger->expect(kMe);
  char who = 0;
  me.watch_host(target_of(*stranger, kPeer), &who, Clock::now());
  const auto look_for = [&](milliseconds duration) {
    const auto end = Clock::now() + duration;
    while (Clock::now() < end) {
      EXPECT_TRUE(me.poll(Clock::now()).empty());
      if (stranger) stranger->poll(Clock::now());
      std::this_thread::sleep_for(milliseconds(1));
    }
  };
  look_for(milliseconds(300));
  stranger.reset();
  look_for(milliseconds(300));  // its end is not the peer's
}

TEST(LivenessMonitor, AForkedChildDoesNotHideTheEndOfItsParent) {
  const Silence silence("60");
  MonitorPair pair;
  pair.look_for(milliseconds(100));
  const pid_t child = ::fork();  // a copy of the peer's sockets, among others
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  pair.peer.reset();
  EXPECT_TRUE(eventually([&] {
    pair.look();
    return !pair.findings.empty();
  }));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace q7x2
