// Virtual hosts whose heartbeats get through, and whose data does not; and what only looks so.
#include <sys/wait.h>

#include <csignal>
#include <regex>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "level.h"
#include "process_state.h"
#include "virtual_hosts.h"

namespace q7x2 {
namespace {

using std::chrono::milliseconds;
using test::buffer;
using test::Comm;
using test::kVictim;
using test::Rank;

constexpr size_t kElements = 1 << 18;

class DataPathTest : public test::VirtualHosts {
 protected:
  void SetUp() override {
    VirtualHosts::SetUp();
    if (IsSkipped()) return;
    if (const std::string why = cannot_drop(); !why.empty()) GTEST_SKIP() << why;
  }

  /// All ranks reduce without end, and name the victim because `happens` on rank 0.
  void expect_blocked(const std::function<void(Rank&)>& happens) const {
    run("2", [&](Rank& rank, Comm& comm) {
      // Every rank sends to every other one all the time.
      rank.put("port", std::to_string(port_of_heartbeats(rank)));
      if (rank.rank == 0) happens(rank);
      rank.barrier();
      const TimePoint began = Clock::now();
      std::shared_ptr<CollectiveTask> task;
      do {
        task = comm.all_reduce(buffer<int32_t>(kElements));
        comm.await(*task);
      } while (!task->error());
      // The limit is the bar of docs/reliability.md. It needs a quiet machine.
      if (test::is_nightly()) {
        EXPECT_LT(Clock::now() - began, milliseconds(2500) * test::kSlowdown);
      }
      const std::string text = task->error()->what();
      EXPECT_EQ(task->error()->code(), ErrorCode::kPeerFailed) << text;
      EXPECT_NE(text.find("is blocked (firewall or MTU?), its host answers"), std::string::npos)
          << rank.rank << ": " << text;
      // Either end may have found it first.
      EXPECT_NE(text.find("rank " + std::to_string(kVictim) + " (pid"), std::string::npos) << text;
      rank.barrier();
    });
  }

  static uint16_t port_of_heartbeats(Rank& rank) {
    Locked locked(rank.runtime().lock());
    return rank.runtime().peers().heartbeat_port(locked);
  }
  /// A rule for what goes between a host and others, but is no heartbeat.
  static std::string data(Rank& rank, const std::string& direction) {
    std::string ports;
    for (int r = 0; r < rank.world_size; ++r) ports += (r ? ", " : "") + rank.get(r, "port");
    return "ip " + direction + " 10.79.0." + std::to_string(kVictim + 1) + " tcp dport != { " +
           ports + " } tcp sport != { " + ports + " }";
  }
};

TEST_F(DataPathTest, ABlockedWayToAHostIsNamed) {
  expect_blocked([&](Rank& rank) { drop(data(rank, "daddr")); });
}

TEST_F(DataPathTest, ABlockedWayFromAHostIsNamed) {
  expect_blocked([&](Rank& rank) { drop(data(rank, "saddr")); });
}

TEST_F(DataPathTest, AWayThatDropsLargePacketsIsNamed) {
  expect_blocked([&](Rank&) {
    drop("ip daddr 10.79.0." + std::to_string(kVictim + 1) + " meta length > 1000");
  });
}

// A firewall that lets heartbeats pass, and no connection to UCX's ports.
TEST_F(DataPathTest, AFirewallIsNamedWithThePortThatItDrops) {
  run(
      "0.5",
      [&](Rank& rank, Comm& comm) {
        rank.put("port", std::to_string(port_of_heartbeats(rank)));
        if (rank.rank == 0) {
          std::string ports;
          for (int r = 0; r < rank.world_size; ++r) ports += (r ? ", " : "") + rank.get(r, "port");
          drop("tcp flags & (syn | ack) == syn tcp dport != { " + ports + " }");
        }
        rank.barrier();
        const auto task = comm.all_reduce(buffer<int32_t>(kElements));
        comm.await(*task);
        ASSERT_TRUE(task->error());
        const std::string text = task->error()->what();
        EXPECT_EQ(task->error()->code(), ErrorCode::kPeerFailed) << text;
        // The end that is told does not know the port.
        const std::regex here(
            "is blocked \\(firewall or MTU\\?\\), its host answers(: a firewall drops TCP to "
            "10\\.79\\.0\\.[123] port [0-9]+, which UCX listens at, seen from rank [012])?");
        std::smatch found;
        ASSERT_TRUE(std::regex_search(text, found, here)) << rank.rank << ": " << text;
        rank.put("names the port", found[1].matched ? "yes" : "no");
        bool is_named = false;
        for (int r = 0; r < rank.world_size; ++r) {
          is_named |= rank.get(r, "names the port") == "yes";
        }
        EXPECT_TRUE(is_named) << text;
        rank.barrier();
      },
      {}, /*connects=*/false);
}

// Its kernel takes what fits, and then says that there is no room.
TEST_F(DataPathTest, AProcessThatDoesNotReadIsNotBlocked) {
  ::setenv("UCX_RNDV_THRESH", "inf", 1);  // else UCX asks before it sends
  run("0.5", [&](Rank& rank, Comm& comm) {
    constexpr size_t kMuch = 8 << 20;  // far more than sockets hold
    if (rank.rank == kVictim) {
      ::raise(SIGSTOP);
    } else {
      test::await_state(rank.pid_of(kVictim), 'T');
    }
    const auto task = rank.rank == kVictim ? comm.receive(0, 1, buffer<int32_t>(kMuch))
                      : rank.rank == 0     ? comm.send(kVictim, 1, buffer<int32_t>(kMuch))
                                           : nullptr;
    if (rank.rank == 0) {
      // As long as ten limits, in which TCP's questions for room become rare.
      std::this_thread::sleep_for(milliseconds(5000));
      EXPECT_FALSE(comm.group().error()) << comm.group().error()->what();
      ::kill(rank.pid_of(kVictim), SIGCONT);
    }
    if (task) comm.succeed(*task);
    reduce(comm);
    rank.barrier();
  });
  ::unsetenv("UCX_RNDV_THRESH");
}

}  // namespace
}  // namespace q7x2
