// Virtual hosts that have addresses of IPv6 alone: they know of each other what others know.
#include <csignal>
#include <string>

#include <gtest/gtest.h>

#include "transport/quirks/tcp_sockets.h"
#include "virtual_hosts.h"

namespace q7x2 {
namespace {

using test::buffer;
using test::Comm;
using test::expect_named;
using test::kVictim;
using test::Rank;

class Ipv6Test : public test::VirtualHosts {
 protected:
  Ipv6Test() : VirtualHosts(/*is_v6=*/true) {}
};

TEST_F(Ipv6Test, AHostIsReachedAtItsAddress) {
  run("60", [&](Rank& rank, Comm&) {
    EXPECT_EQ(rank.runtime().heartbeat_address().text(), address(rank.rank));
    Locked locked(rank.runtime().lock());
    const int worker = rank.runtime().reactor().worker().event_fd();
    EXPECT_FALSE(connection_totals(worker).empty());
    for (const ConnectionTotals& each : connection_totals(worker)) {
      EXPECT_EQ(each.peer.address.text().substr(0, 6), "fd79::");
    }
  });
}

TEST_F(Ipv6Test, AHostThatIsCutOffIsNamed) {
  run("1", [&](Rank& rank, Comm& comm) {
    if (rank.rank == 0) cut();
    const Error error = comm.failure(*comm.all_reduce(buffer<int32_t>(10)));
    if (rank.rank == kVictim) {
      EXPECT_EQ(error.code(), ErrorCode::kPeerFailed) << error.what();
    } else {
      expect_named(error, ErrorCode::kPeerFailed, "has not answered for ");
    }
  });
}

TEST_F(Ipv6Test, AKilledProcessIsNamed) {
  run("60",
      [&](Rank& rank, Comm& comm) {
        if (rank.rank == kVictim) ::raise(SIGKILL);
        const Error error = comm.failure(*comm.all_reduce(buffer<int32_t>(10)));
        expect_named(error, ErrorCode::kPeerFailed, "failed: its ");
      },
      {.killed = {kVictim}});
}

TEST_F(Ipv6Test, AWayThatDropsLargePacketsIsNamed) {
  if (const std::string why = cannot_drop(); !why.empty()) GTEST_SKIP() << why;
  run("2", [&](Rank& rank, Comm& comm) {
    if (rank.rank == 0) drop("ip6 daddr " + address(kVictim) + " meta length > 1000");
    rank.barrier();
    std::shared_ptr<CollectiveTask> task;
    do {
      task = comm.all_reduce(buffer<int32_t>(1 << 18));
      comm.await(*task);
    } while (!task->error());
    const std::string text = task->error()->what();
    EXPECT_EQ(task->error()->code(), ErrorCode::kPeerFailed) << text;
    EXPECT_NE(text.find("is blocked (firewall or MTU?), its host answers"), std::string::npos)
        << rank.rank << ": " << text;
    rank.barrier();
  });
}

}  // namespace
}  // namespace q7x2
