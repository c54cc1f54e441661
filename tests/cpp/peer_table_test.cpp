// Incarnations, suspects and deaths. In forked ranks, because UCX does not survive a fork.
#include "transport/peer/peer_table.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "deaf_port.h"
#include "ranks.h"
#include "transport/net/nics.h"

namespace q7x2 {
namespace {

using test::Rank;
using test::run_ranks;

constexpr uint64_t kSelf = 41;
constexpr uint64_t kProcess = 42;
constexpr uint64_t kOther = 43;

// A table of process `self`, and whom it reported dead.
struct Bench {
  uint64_t self = kSelf;
  Reactor reactor{{}};
  std::vector<std::pair<uint64_t, uint32_t>> deaths = {};  // process, incarnation
  PeerTable table{JobSecret(""), Identity{self, {}}, {}, {}, reactor, [this](Locked&, Peer& peer) {
                    deaths.emplace_back(peer.info.process, peer.incarnation);
                  }};

  PeerInfo peer_info(uint64_t process, int pid = 0) const {
    PeerInfo peer_info;
    peer_info.process = process;
    peer_info.pid = pid;
    return peer_info;
  }
};

void run_bench(const std::function<void(Bench&)>& body) {
  run_ranks(1, [&](Rank&) {
    Bench bench;
    body(bench);
  });
}

TEST(PeerTable, GroupsOfOneProcessShareItsConnection) {
  run_bench([](Bench& bench) {
    Locked locked(bench.reactor.lock());
    Peer& first = bench.table.meet(locked, bench.peer_info(kProcess), /*same_host=*/false, 0);
    EXPECT_EQ(&bench.table.meet(locked, bench.peer_info(kProcess), false, 0), &first);
    EXPECT_NE(&bench.table.meet(locked, bench.peer_info(kOther), false, 0), &first);
    EXPECT_EQ(bench.table.find(locked, kProcess), &first);
    EXPECT_EQ(bench.table.find(locked, 1), nullptr);
    EXPECT_TRUE(first.life.is_alive());
    EXPECT_TRUE(bench.table.renew(locked).empty()) << "none broke";
  });
}

TEST(PeerTable, ASuspectDiesAfterItsGrace) {
  run_bench([](Bench& bench) {
    Locked locked(bench.reactor.lock());
    Peer& peer = bench.table.meet(locked, bench.peer_info(kProcess), false, 0);
    const TimePoint before = Clock::now();
    bench.table.suspect(locked, peer, "its connection broke");
    int looks = 0;
    const auto look = [&] { ++looks; };
    bench.table.declare_dead(locked, before, look);
    EXPECT_TRUE(peer.life.is_suspect());
    EXPECT_TRUE(bench.table.has_suspects());
    EXPECT_EQ(looks, 0);
    bench.table.declare_dead(locked, Clock::now() + PeerLife::grace(Evidence::kConnectionBroke),
                             look);
    EXPECT_TRUE(peer.life.is_dead());
    EXPECT_FALSE(bench.table.has_suspects());
    EXPECT_EQ(looks, 1) << "what it had sent is received first";
    ASSERT_EQ(bench.deaths.size(), 1U);
    EXPECT_EQ(bench.deaths[0], std::make_pair(kProcess, 0U));
    EXPECT_FALSE(bench.table.connect(locked, peer));
  });
}

// A message that is received before a death may ask for an answer by the next connection.
TEST(PeerTable, PeersMayBeMetBeforeAnotherDies) {
  run_bench([](Bench& bench) {
    Locked locked(bench.reactor.lock());
    constexpr uint64_t kMany = 200;
    for (uint64_t i = 0; i < kMany; ++i) {
      bench.table.suspect(locked, bench.table.meet(locked, bench.peer_info(kOther + i), false, 0),
                          "its connection broke");
    }
    int looks = 0;
    bench.table.declare_dead(locked, Clock::now() + PeerLife::grace(Evidence::kConnectionBroke),
                             [&] {
                               ++looks;
                               for (uint64_t i = 0; i < 2 * kMany; ++i) {
                                 bench.table.meet(locked, bench.peer_info(kOther + i), false, 1);
                               }
                             });
    EXPECT_EQ(looks, 1) << "all died when the first message was received";
    EXPECT_EQ(bench.deaths.size(), kMany) << "each once";
    for (uint64_t i = 0; i < 2 * kMany; ++i) {
      EXPECT_TRUE(bench.table.find(locked, kOther + i)->life.is_alive());
    }
    EXPECT_FALSE(bench.table.has_suspects());
  });
}

TEST(PeerTable, ABrokenConnectionIsRenewed) {
  run_bench([](Bench& bench) {
    Locked locked(bench.reactor.lock());
    Peer& broken = bench.table.meet(locked, bench.peer_info(kProcess), false, 0);
    bench.table.suspect(locked, broken, "its connection broke");
    auto renewed = bench.table.renew(locked);
    ASSERT_EQ(renewed.size(), 1U);
    EXPECT_EQ(renewed[0].process, kProcess);
    EXPECT_EQ(renewed[0].incarnation, 1U);

    Peer& next = bench.table.meet(locked, bench.peer_info(kProcess), false, 1);
    EXPECT_NE(&next, &broken);
    EXPECT_TRUE(broken.life.is_dead()) << "groups that knew it have failed";
    EXPECT_EQ(bench.deaths.size(), 1U);
    EXPECT_TRUE(next.life.is_alive());
    EXPECT_EQ(bench.table.find(locked, kProcess), &next);
    renewed = bench.table.renew(locked);
    ASSERT_EQ(renewed.size(), 1U);
    EXPECT_EQ(renewed[0].incarnation, 1U) << "it stays where it is";
  });
}

TEST(PeerTable, CountsWhatWasOpenedBefore) {
  run_bench([](Bench& bench) {
    Locked locked(bench.reactor.lock());
    PeerInfo peer_info = bench.peer_info(kProcess);
    peer_info.address = bench.reactor.worker().address();
    const auto opened = [&] { return bench.table.renew(locked).front().opened; };
    Peer& first = bench.table.meet(locked, peer_info, false, 0);
    bench.table.suspect(locked, first, "it broke before it was opened");
    EXPECT_EQ(opened(), 0U);

    Peer& second = bench.table.meet(locked, peer_info, false, 1);
    ASSERT_TRUE(bench.table.connect(locked, second));
    EXPECT_EQ(opened(), 0U) << "the present one does not count";
    bench.table.suspect(locked, second, "it broke");
    EXPECT_EQ(opened(), 1U);

    Peer& third = bench.table.meet(locked, peer_info, false, 2);
    bench.table.catch_up(locked, third, Wire::kShared, 4);
    EXPECT_EQ(opened(), 4U) << "the peer had opened all";
    EXPECT_FALSE(third.shared.is_open());
    bench.table.catch_up(locked, third, Wire::kShared, 2);
    EXPECT_EQ(opened(), 4U) << "the peer catches up";
  });
}

TEST(PeerTable, CountsThePrivateLinksThatWereOpenedBefore) {
  run_bench([](Bench& bench) {
    Locked locked(bench.reactor.lock());
    const PeerInfo peer_info = bench.peer_info(kProcess);
    UcpWorker& worker = bench.reactor.worker();
    Peer& first = bench.table.meet(locked, peer_info, false, 0);
    first.rail = Link(worker, worker.address());
    ASSERT_TRUE(bench.table.connect_rail(locked, first));
    bench.table.suspect(locked, first, "it broke");
    const PeerInfo::Renewed renewed = bench.table.renew(locked).front();
    EXPECT_EQ(renewed.opened, 0U) << "only the private link was opened";
    EXPECT_EQ(renewed.opened_rail, 1U);

    Peer& second = bench.table.meet(locked, peer_info, false, 1);
    second.rail = Link(worker, worker.address());
    bench.table.catch_up(locked, second, Wire::kPrivate, 3);
    EXPECT_EQ(bench.table.renew(locked).front().opened_rail, 3U);
    EXPECT_FALSE(second.rail.is_open());
  });
}

TEST(PeerTable, TheOtherEndMayNoticeFirst) {
  run_bench([](Bench& bench) {
    Locked locked(bench.reactor.lock());
    Peer& old = bench.table.meet(locked, bench.peer_info(kProcess), false, 0);
    Peer& next = bench.table.meet(locked, bench.peer_info(kProcess), false, 3);
    EXPECT_TRUE(old.life.is_dead());
    EXPECT_EQ(next.incarnation, 3U);
    ASSERT_EQ(bench.deaths.size(), 1U);
    EXPECT_EQ(bench.deaths[0], std::make_pair(kProcess, 0U));
    // A peer info that is older than the connection changes nothing.
    EXPECT_EQ(&bench.table.meet(locked, bench.peer_info(kProcess), false, 1), &next);
  });
}

TEST(PeerTable, NoticesThatAProcessOfThisHostEnds) {
  run_bench([](Bench& bench) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::pause();
      ::_exit(0);
    }
    Peer* peer = nullptr;
    {
      Locked locked(bench.reactor.lock());
      peer = &bench.table.meet(locked, bench.peer_info(kProcess, child), /*same_host=*/true, 0);
      EXPECT_TRUE(peer->life.is_alive());
    }
    ::kill(child, SIGKILL);
    pollfd entry{bench.table.poll_fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&entry, 1, 10'000), 1);
    ::waitpid(child, nullptr, 0);
    {
      Locked locked(bench.reactor.lock());
      bench.table.poll(locked, Clock::now());
    }
    EXPECT_TRUE(peer->life.is_suspect());
    EXPECT_TRUE(peer->life.has_ended());
    EXPECT_EQ(::poll(&entry, 1, 0), 0) << "it is told once";

    Locked locked(bench.reactor.lock());
    EXPECT_TRUE(bench.table.renew(locked).empty()) << "there is nothing to connect to";
    Peer& gone = bench.table.meet(locked, bench.peer_info(kOther, child), true, 0);
    EXPECT_TRUE(gone.life.is_suspect()) << "it had ended before";
  });
}

// A reset may come before the other end has accepted the connection.
TEST(PeerTable, AnEndThatSeesABreakTellsTheOther) {
  run_bench([](Bench& one) {
    Bench other{.self = kProcess};
    const auto meet = [](Bench& bench, Bench& met, uint32_t incarnation) -> Peer& {
      PeerInfo peer_info = bench.peer_info(met.self, ::getpid());
      peer_info.heartbeat_address = kLoopback;
      {
        Locked locked(met.reactor.lock());
        peer_info.heartbeat_port = met.table.heartbeat_port(locked);
      }
      Locked locked(bench.reactor.lock());
      return bench.table.meet(locked, peer_info, /*same_host=*/true, incarnation);
    };
    const auto look = [](Bench& bench) {
      Locked locked(bench.reactor.lock());
      bench.table.poll(locked, Clock::now());
      bench.table.declare_dead(locked, Clock::now(), [] {});
    };
    for (uint32_t incarnation = 0; incarnation < 3; ++incarnation) {
      Peer& there = meet(one, other, incarnation);
      Peer& here = meet(other, one, incarnation);
      {
        Locked locked(one.reactor.lock());
        one.table.suspect(locked, there, "its connection broke");
      }
      const TimePoint give_up = Clock::now() + std::chrono::seconds(20);
      while (!here.life.is_dead() && Clock::now() < give_up) {
        look(one);
        look(other);
      }
      EXPECT_TRUE(there.life.is_dead());
      EXPECT_EQ(here.life.reason(), "it has given up the connection to this process");
      EXPECT_FALSE(here.life.must_give_notice()) << "so it is not told in turn";
    }
  });
}

// A group that is made right then gives up the connection, and with it what watched the process.
TEST(PeerTable, AnEndIsSeenAlsoIfTheConnectionIsRenewedFirst) {
  run_bench([](Bench& one) {
    std::unique_ptr<Bench> other(new Bench{.self = kProcess});
    PeerInfo peer_info = one.peer_info(kProcess, ::getpid());
    peer_info.heartbeat_address = kLoopback;
    {
      Locked locked(other->reactor.lock());
      peer_info.heartbeat_port = other->table.heartbeat_port(locked);
    }
    Locked locked(one.reactor.lock());
    Peer& peer = one.table.meet(locked, peer_info, /*same_host=*/false, 0);
    one.table.watch(locked, peer);
    other.reset();
    one.table.suspect(locked, peer, "its connection broke");
    EXPECT_EQ(one.table.renew(locked).size(), 1U) << "nobody knows yet";
    const uint64_t losses = one.table.num_losses();
    const TimePoint give_up = Clock::now() + std::chrono::seconds(20);
    while (!peer.life.has_ended() && Clock::now() < give_up) one.table.poll(locked, Clock::now());
    EXPECT_TRUE(peer.life.has_ended());
    EXPECT_GT(one.table.num_losses(), losses) << "whoever waits for it looks again";
    EXPECT_EQ(one.deaths.size(), 1U);
    EXPECT_TRUE(one.table.renew(locked).empty()) << "there is nothing to connect to";
  });
}

// What a group is told that is made right then must hold.
TEST(PeerTable, IsUpToDateOnceItKnowsThatAConnectionBroke) {
  run_ranks(2, [](Rank& rank) {
    ::setenv("UCX_TLS", "tcp", 1);
    if (rank.rank == 1) {
      {
        Reactor gone({});
        HostAddresses hosts = nic_roles().sources;
        hosts.add(nic_roles().address);
        hosts.add(kLoopback);
        {
          Locked locked(gone.lock());
          gone.admit(locked, hosts);
        }
        rank.put("address", gone.worker().address());
        rank.barrier();
        for (int i = 0; i < 1000; ++i) {
          Locked locked(gone.lock());
          gone.progress(locked);
          ::usleep(100);
        }
      }
      rank.barrier();  // its sockets are closed
      rank.barrier();
      return;
    }
    Bench bench;
    PeerInfo peer_info = bench.peer_info(kProcess);
    peer_info.address = rank.get(1, "address");
    Peer* peer = nullptr;
    rank.barrier();
    {
      Locked locked(bench.reactor.lock());
      peer = &bench.table.meet(locked, peer_info, /*same_host=*/false, 0);
      ASSERT_TRUE(bench.table.connect(locked, *peer));
      bench.reactor.send_message(locked, peer->shared.endpoint(), 0, "so that it connects");
      const TimePoint until = Clock::now() + std::chrono::seconds(10);
      while (!bench.table.is_up_to_date(locked, Clock::now())) ASSERT_LT(Clock::now(), until);
    }
    rank.barrier();
    Locked locked(bench.reactor.lock());
    const TimePoint until = Clock::now() + std::chrono::seconds(10);
    EXPECT_TRUE(peer->life.is_alive()) << "nobody has asked";
    while (!bench.table.is_up_to_date(locked, Clock::now())) ASSERT_LT(Clock::now(), until);
    EXPECT_TRUE(peer->life.is_suspect());
    rank.barrier();
  });
}

// Its peer neither progresses UCX nor answers heartbeats, so what is sent to it never ends.
TEST(PeerTable, AHostThatDoesNotAnswerIsNotWaitedForAtTheEnd) {
  run_ranks(2, [](Rank& rank) {
    ::setenv("UCX_TLS", "tcp", 1);
    if (rank.rank == 1) {
      Reactor idle({});
      rank.put("address", idle.worker().address());
      rank.barrier();
      return;
    }
    ::setenv("Q7X2_SILENCE", "60", 1);
    Bench bench;
    const test::DeafPort deaf;
    PeerInfo peer_info = bench.peer_info(kProcess);
    peer_info.address = rank.get(1, "address");
    peer_info.heartbeat_address = kLoopback;
    peer_info.heartbeat_port = deaf.port();
    {
      Locked locked(bench.reactor.lock());
      Peer& peer = bench.table.meet(locked, peer_info, /*same_host=*/false, 0);
      ASSERT_TRUE(bench.table.connect(locked, peer));
      bench.reactor.send_message(locked, peer.shared.endpoint(), 0, "what nobody takes");
      const TimePoint began = Clock::now();
      bench.table.close(locked, std::chrono::seconds(30));
      EXPECT_LT(Clock::now() - began, std::chrono::seconds(15));
    }
    rank.barrier();
  });
}

}  // namespace
}  // namespace q7x2
