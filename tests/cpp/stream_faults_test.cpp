// Connections of a path break, bring what cannot be, or stall. Nothing is lost.
#include <sys/socket.h>

#include <algorithm>
#include <deque>
#include <memory>

#include <gtest/gtest.h>

#include "level.h"
#include "stream_pair.h"
#include "transport/net/connection_attempt.h"

namespace q7x2::stream_test {
namespace {

/// Random messages in both directions, with receives that are posted early and late.
class Traffic {
 public:
  Traffic(Pair& pair, uint64_t seed) : pair_(pair), random_(seed) {}

  void add() {
    for (auto [from, to] : {std::pair(&pair_.a, &pair_.b), std::pair(&pair_.b, &pair_.a)}) {
      Item& item = items_.emplace_back();
      const uint64_t kind = random_() % 8;
      const size_t most = kind == 0 ? 300'000 : kind < 4 ? 40'000 : 3000;
      item.to = to;
      item.sent = random_bytes(random_() % most, random_());
      item.got.resize(item.sent.size());
      item.tag = 1 + random_() % 3;
      const bool is_early = random_() % 2 == 0;
      if (is_early) item.receive = to->receive(item.got, item.tag + tag_base());
      from->send(item.sent, item.tag + tag_base());
      if (!is_early) item.receive = to->receive(item.got, item.tag + tag_base());
      ++next_;
    }
  }
  bool is_done() const {
    return std::ranges::all_of(items_,
                               [](const Item& each) { return each.to->is_done(each.receive); });
  }
  void check() const {
    for (const Item& each : items_) {
      ASSERT_EQ(each.to->outcome(each.receive)->status, StreamStatus::kOk);
      ASSERT_EQ(each.to->outcome(each.receive)->length, each.sent.size());
      ASSERT_TRUE(each.got == each.sent);
    }
  }
  void clear() {
    items_.clear();
    pair_.a.outcomes.clear();
    pair_.b.outcomes.clear();
  }

 private:
  struct Item {
    Side* to = nullptr;
    Bytes sent;
    Bytes got;
    uint64_t tag = 0;
    uint64_t receive = 0;
  };

  // So each pair of a send and a receive meets, in whatever order they are posted.
  uint64_t tag_base() const { return 10 * next_; }

  Pair& pair_;
  std::mt19937_64 random_;
  std::deque<Item> items_;
  uint64_t next_ = 1;
};

TEST(StreamFaults, NothingIsLostByCuts) {
  StreamOptions options;
  options.fewest_connections = 6;
  options.silence = std::chrono::seconds(30);  // a slow machine is not a dead one
  Pair pair(options, 11);
  pair.proxy.bytes_between_cuts = 60'000;
  Traffic traffic(pair, 12);
  const int cuts = test::at_level(200, 2000);
  while (pair.proxy.cuts < cuts) {
    for (int i = 0; i < 10; ++i) traffic.add();
    ASSERT_TRUE(pair.run_until([&] { return traffic.is_done(); }))
        << pair.proxy.cuts << " cuts; " << pair.a.path->failure() << pair.b.path->failure();
    traffic.check();
    traffic.clear();
  }
  pair.proxy.bytes_between_cuts = 0;
  ASSERT_TRUE(
      pair.run_until([&] { return pair.a.path->is_flushed() && pair.b.path->is_flushed(); }));
  EXPECT_GE(pair.a.path->counts().connections_lost, static_cast<uint64_t>(cuts) / 2);
  EXPECT_GT(pair.a.path->counts().chunks_again, 0);
}

// Without encryption a flipped bit may be in the bytes of a message, which TCP's checksum is there
// for. In a header it must be found, or do no harm that memory checkers see.
TEST(StreamFaults, DamagedFramesEndTheirConnection) {
  StreamOptions options;
  options.fewest_connections = 4;
  options.silence = std::chrono::seconds(30);
  uint64_t bad = 0;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    Pair pair(options, seed);
    pair.proxy.bytes_between_flips = 3000;
    std::deque<Bytes> memory;
    for (uint64_t i = 0; i < 100; ++i) {
      pair.a.send(memory.emplace_back(random_bytes(i % 4 == 0 ? 20'000 : 100, i)), i);
      pair.b.receive(memory.emplace_back(20'000), i);
    }
    for (int i = 0; i < 1500; ++i) pair.step();
    bad += pair.a.path->counts().bad_frames + pair.b.path->counts().bad_frames +
           pair.b.lane.refused_calls();
  }
  EXPECT_GT(bad, 10);
}

TEST(StreamFaults, AConnectionThatStallsIsPassedBy) {
  StreamOptions options;
  options.fewest_connections = 5;
  options.silence = std::chrono::seconds(60);
  Pair pair(options, 21);
  const Bytes sent = random_bytes(8'000'000, 1);
  Bytes got(sent.size());
  ASSERT_TRUE(pair.run_until([&] { return pair.a.path->num_connections() == 5; }));
  for (const int stalled : {2, 3, 5, 1}) {
    pair.proxy.stalled = stalled;
    const uint64_t receive = pair.b.receive(got, 1);
    const uint64_t send = pair.a.send(sent, 1);
    ASSERT_TRUE(pair.run_until([&] { return pair.a.is_done(send) && pair.b.is_done(receive); }))
        << stalled;
    EXPECT_TRUE(got == sent);
  }
  EXPECT_GT(pair.a.path->counts().chunks_again, 0);
  EXPECT_EQ(pair.a.path->counts().connections_lost, 0);
}

TEST(StreamFaults, AllConnectionsMayBreakAtOnce) {
  Pair pair;
  const Bytes sent = random_bytes(10'000'000, 1);
  Bytes got(sent.size());
  const uint64_t receive = pair.b.receive(got, 1);
  const uint64_t send = pair.a.send(sent, 1);
  ASSERT_TRUE(pair.run_until([&] { return got.front() == sent.front() || got[9] == sent[9]; }));
  pair.proxy.cut_all();
  ASSERT_TRUE(pair.run_until([&] { return pair.a.is_done(send) && pair.b.is_done(receive); }));
  EXPECT_TRUE(got == sent);
}

/// A clock that a test sets.
struct VirtualClock {
  StreamTime now = StreamClock::now();
  StreamOptions options() {
    StreamOptions options;
    options.silence = std::chrono::seconds(2);
    options.now = [this] { return now; };
    return options;
  }
};

TEST(StreamFaults, APathWithoutConnectionsFailsAfterTheSilence) {
  VirtualClock clock;
  Pair pair(clock.options());
  const Bytes sent = random_bytes(10'000'000, 1);
  Bytes got(sent.size());
  ASSERT_TRUE(pair.run_until(
      [&] { return pair.a.path->num_connections() > 0 && pair.b.path->num_connections() > 0; }));
  pair.proxy.is_open = false;
  pair.proxy.cut_all();
  const uint64_t receive = pair.b.receive(got, 1);
  const uint64_t send = pair.a.send(sent, 1);
  ASSERT_TRUE(pair.run_until(
      [&] { return pair.a.path->num_connections() + pair.b.path->num_connections() == 0; }));
  for (int i = 0; i < 18; ++i) {  // 1.8 s
    clock.now += std::chrono::milliseconds(100);
    for (int j = 0; j < 5; ++j) pair.step();
  }
  EXPECT_EQ(pair.a.path->failure(), "");
  EXPECT_EQ(pair.b.path->failure(), "");
  for (int i = 0; i < 6; ++i) {
    clock.now += std::chrono::milliseconds(100);
    for (int j = 0; j < 5; ++j) pair.step();
  }
  const std::string why =
      "its stream connections broke, and no other could be made for 2.0 s (Q7X2_SILENCE)";
  EXPECT_EQ(pair.a.path->failure(), why);
  EXPECT_EQ(pair.b.path->failure(), "");  // it has nothing to send, and a part of no message
  EXPECT_EQ(pair.a.outcome(send)->status, StreamStatus::kPathClosed);
  EXPECT_FALSE(pair.b.is_done(receive));  // of any path
  const uint64_t late = pair.a.send(sent, 1);
  EXPECT_EQ(pair.a.outcome(late)->status, StreamStatus::kPathClosed);
}

TEST(StreamFaults, AnIdlePathSendsNothingAndDoesNotFail) {
  VirtualClock clock;
  Pair pair(clock.options());
  const Bytes sent = random_bytes(2'000'000, 1);
  Bytes got(sent.size());
  for (int i = 0; i < 3; ++i) {
    const uint64_t receive = pair.b.receive(got, 1);
    const uint64_t send = pair.a.send(sent, 1);
    ASSERT_TRUE(pair.run_until([&] {
      clock.now += std::chrono::microseconds(100);
      return pair.a.is_done(send) && pair.b.is_done(receive) && !pair.a.path->is_busy();
    }));
    for (int j = 0; j < 100; ++j) {  // the last acknowledgements and looks
      clock.now += std::chrono::milliseconds(5);
      pair.step();
    }
    EXPECT_EQ(pair.a.lane.due(), StreamTime::max());
    EXPECT_EQ(pair.b.lane.due(), StreamTime::max());
    for (int j = 0; j < 40; ++j) {
      clock.now += std::chrono::milliseconds(400);  // less than counts as having slept
      pair.step();
    }
    EXPECT_FALSE(pair.a.path->is_closed());
    EXPECT_FALSE(pair.b.path->is_closed());
  }
}

TEST(StreamFaults, APathComesBackWithinTheSilence) {
  VirtualClock clock;
  Pair pair(clock.options());
  ASSERT_TRUE(pair.run_until(
      [&] { return pair.a.path->num_connections() > 0 && pair.b.path->num_connections() > 0; }));
  pair.proxy.is_open = false;
  pair.proxy.cut_all();
  const Bytes sent = random_bytes(2'000'000, 1);
  Bytes got(sent.size());
  const uint64_t receive = pair.b.receive(got, 1);
  const uint64_t send = pair.a.send(sent, 1);
  for (int i = 0; i < 15; ++i) {
    clock.now += std::chrono::milliseconds(100);
    for (int j = 0; j < 5; ++j) pair.step();
  }
  pair.proxy.is_open = true;
  ASSERT_TRUE(pair.run_until([&] {
    clock.now += std::chrono::microseconds(10);
    return pair.a.is_done(send) && pair.b.is_done(receive);
  })) << pair.a.path->failure();
  EXPECT_TRUE(got == sent);
}

TEST(StreamFaults, TimeInWhichThisProcessSleptDoesNotCount) {
  VirtualClock clock;
  Pair pair(clock.options());
  clock.now += std::chrono::minutes(1);
  const Bytes sent = random_bytes(2'000'000, 1);
  Bytes got(sent.size());
  for (int i = 0; i < 3; ++i) {
    const uint64_t receive = pair.b.receive(got, 1);
    const uint64_t send = pair.a.send(sent, 1);
    ASSERT_TRUE(pair.run_until([&] {
      clock.now += std::chrono::microseconds(10);
      return pair.a.is_done(send) && pair.b.is_done(receive);
    })) << pair.a.path->failure()
        << pair.b.path->failure();
    clock.now += std::chrono::minutes(1);
  }
}

TEST(StreamFaults, ADeadProcessRefuses) {
  auto b = std::make_unique<Side>(2);
  Side a(1);
  a.path = &a.lane.open({b->self, 7, {{kLoopback, b->port}}, true});
  b->path = &b->lane.open({a.self, 7, {}, false});
  const auto run_until = [&](const auto& condition) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!condition() && std::chrono::steady_clock::now() < give_up) {
      a.lane.progress();
      if (b) b->lane.progress();
    }
    return condition();
  };
  ASSERT_TRUE(run_until([&] { return b->path->num_connections() > 0; }));
  b.reset();
  const Bytes sent(100);
  a.send(sent, 1);  // or nobody would care
  ASSERT_TRUE(run_until([&] { return a.path->is_closed(); }));
  EXPECT_EQ(a.path->failure(), "TCP to " + a.path->target().addresses.front().endpoint.text() +
                                   " is refused: nobody listens there any more");
}

// A firewall keeps new connections of one side out, and all that were there are reset.
TEST(StreamFaults, WhoIsRefusedWaitsForACallOfTheOther) {
  VirtualClock clock;
  Side a(1, clock.options());
  Side b(2, clock.options());
  auto way_in = std::make_unique<FlakyProxy>(b.port, 1);
  a.path = &a.lane.open({b.self, 7, {{kLoopback, way_in->port()}}, /*calls=*/true});
  b.path = &b.lane.open({a.self, 7, {{kLoopback, a.port}}, /*calls=*/false});
  a.path->watch();
  b.path->watch();
  const auto run_until = [&](const auto& condition) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!condition() && std::chrono::steady_clock::now() < give_up) {
      a.lane.progress();
      if (way_in) way_in->step();
      b.lane.progress();
    }
    return condition();
  };
  ASSERT_TRUE(run_until([&] { return b.path->num_connections() > 0; }));
  way_in.reset();
  // It calls and is refused, while the other side has not noticed anything yet.
  for (int i = 0; i < 18; ++i) {
    for (int j = 0; j < 50; ++j) a.lane.progress();
    clock.now += std::chrono::milliseconds(5);
  }
  ASSERT_EQ(a.path->failure(), "");
  const Bytes sent = random_bytes(100'000, 1);
  Bytes got(sent.size());
  const uint64_t receive = b.receive(got, 1);
  a.send(sent, 1);
  EXPECT_TRUE(run_until([&] { return b.is_done(receive); })) << a.path->failure();
  EXPECT_TRUE(got == sent);
}

TEST(StreamFaults, WhoCallsForAPathThatWasGivenUpIsTold) {
  for (const bool is_forgotten : {true, false}) {
    Side a(1);
    Side b(2);
    a.lane.on_call([](uint64_t, uint64_t) { return CallFate::kGivenUp; });
    if (!is_forgotten) a.lane.open({b.self, 7, {}, false}).close();
    b.path = &b.lane.open({a.self, 7, {{kLoopback, a.port}}, /*calls=*/true});
    b.send(Bytes(100), 1);
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!b.path->is_closed() && std::chrono::steady_clock::now() < give_up) {
      a.lane.progress();
      b.lane.progress();
    }
    EXPECT_EQ(b.path->failure(), "it has given up the connection to this process");
    EXPECT_EQ(b.path->fault(), StreamPath::Fault::kGivenUp);
  }
}

TEST(StreamFaults, AStoppedProcessWhoseHostAnswersIsLateAndNotDead) {
  VirtualClock clock;
  Side a(1, clock.options());
  Side b(2, clock.options());
  a.path = &a.lane.open({b.self, 7, {{kLoopback, b.port}}, /*calls=*/true});
  b.path = &b.lane.open({a.self, 7, {}, /*calls=*/false});
  const Bytes sent = random_bytes(2'000'000, 1);
  Bytes got(sent.size());
  const uint64_t send = a.send(sent, 1);
  for (int i = 0; i < 300; ++i) {  // 30 s
    clock.now += std::chrono::milliseconds(100);
    for (int j = 0; j < 5; ++j) a.lane.progress();
  }
  ASSERT_EQ(a.path->failure(), "");
  const uint64_t receive = b.receive(got, 1);
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!(a.is_done(send) && b.is_done(receive)) && std::chrono::steady_clock::now() < give_up) {
    clock.now += std::chrono::microseconds(10);
    a.lane.progress();
    b.lane.progress();
  }
  ASSERT_TRUE(b.is_done(receive));
  EXPECT_EQ(b.outcome(receive)->status, StreamStatus::kOk);
  EXPECT_TRUE(got == sent);
}

/// A port at which connections are neither accepted nor refused, as behind a firewall.
class DeafPort {
 public:
  DeafPort() {
    const SocketAddress any({kLoopback, 0});
    EXPECT_EQ(::bind(socket_, any.get(), any.size()), 0);
    EXPECT_EQ(::listen(socket_, 0), 0);
    for (int i = 0; i < 4; ++i) queue_.push_back(start_connecting(endpoint()));
  }
  IpEndpoint endpoint() const { return *IpEndpoint::own_of(socket_); }

 private:
  PrivateSocket socket_ = PrivateSocket::open(AF_INET);
  std::vector<PrivateSocket> queue_;
};

TEST(StreamFaults, APortBehindAFirewallIsNamed) {
  const DeafPort port;
  VirtualClock clock;
  Side a(1, clock.options());
  std::vector<std::string> told;
  a.lane.on_failure([&](const StreamPath& path) { told.push_back(path.failure()); });
  a.path = &a.lane.open({identity(2), 7, {{port.endpoint()}}, /*calls=*/true});
  const Bytes sent(100);
  ASSERT_EQ(a.outcome(a.send(sent, 1))->status, StreamStatus::kOk);  // it was copied
  for (int i = 0; i < 25; ++i) {                                     // 2.5 s
    clock.now += std::chrono::milliseconds(100);
    for (int j = 0; j < 5; ++j) a.lane.progress();
  }
  const std::vector<std::string> once = {"no stream connection to it can be made: TCP to " +
                                         port.endpoint().text() +
                                         " is not answered (by a firewall?). Open the port, or "
                                         "set Q7X2_STREAMS=0. If there is NAT before that host, "
                                         "set Q7X2_ADVERTISE there"};
  EXPECT_EQ(told, once);
}

}  // namespace
}  // namespace q7x2::stream_test
