// A rank that leaves a group stays for what the others still need of it, as long as that goes on.
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "virtual_hosts.h"

namespace q7x2 {
namespace {

using std::chrono::milliseconds;
using test::buffer;
using test::Comm;
using test::kVictim;
using test::Rank;
using test::run_ranks;
using test::succeeds;

/// As the end of a process group does.
void leave(Rank& rank, Comm& comm) {
  rank.runtime().finish_collectives(&comm.group());
  comm.group().leave();
}

// Far more than UCX sends before the receiver asks for it.
TEST(Leaving, AMessageThatIsSentIsFinished) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    const auto data = buffer<int32_t>(16 << 20, rank.rank == 0 ? 7 : 0);
    if (rank.rank == 0) {
      const auto sent = comm.send(1, 3, data);
      rank.put("begun", "");
      leave(rank, comm);
      EXPECT_FALSE(sent->error()) << sent->error()->what();
    } else {
      rank.get(0, "begun");
      std::this_thread::sleep_for(milliseconds(300));  // it is late
      comm.succeed(*comm.receive(0, 3, data));
      EXPECT_EQ(std::count(data->begin(), data->end(), 7), 16 << 20);
    }
    rank.barrier();
  });
}

TEST(Leaving, AMessageThatNobodyTakesIsNotWaitedForWithoutEnd) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    if (rank.rank == 0) {
      const auto sent = comm.send(1, 3, buffer<int32_t>(16 << 20));
      leave(rank, comm);
      EXPECT_TRUE(sent->error());
    }
    rank.barrier();
  });
}

class LeavingTest : public test::VirtualHosts {};

TEST_F(LeavingTest, ACollectiveOfMoreThanFiveSecondsIsFinished) {
  // 8 MiB from each rank to the others, at 12 Mbit/s.
  for (int r = 0; r < test::kRanks; ++r) {
    ASSERT_TRUE(succeeds("ip netns exec " + switch_ + " tc qdisc add dev port" + std::to_string(r) +
                         " root tbf rate 12mbit burst 64kb latency 200ms"));
  }
  run("60", [&](Rank& rank, Comm& comm) {
    const auto data = buffer<int32_t>(2 << 20, 1);
    const TimePoint began = Clock::now();
    const auto task = comm.all_reduce(data);
    if (rank.rank == kVictim) leave(rank, comm);
    comm.succeed(*task);
    EXPECT_GT(Clock::now() - began, std::chrono::seconds(5)) << "it shows nothing";
    EXPECT_EQ(std::count(data->begin(), data->end(), test::kRanks), 2 << 20);
    rank.barrier();
  });
}

}  // namespace
}  // namespace q7x2
