// Ranks in network namespaces of their own, joined by a bridge: links that are cut, lose packets or
// come back, and processes that are killed or stopped on another host.
#include <fcntl.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "base/owned_fd.h"
#include "comm.h"
#include "ranks.h"
#include "transport/nics.h"

namespace q7x2 {
namespace {

using std::chrono::milliseconds;
using test::buffer;
using test::Comm;
using test::Rank;
using test::run_ranks;
using test::RunOptions;

constexpr int kRanks = 3;
constexpr int kVictim = 2;
// What a loaded machine takes beyond what is promised.
constexpr milliseconds kSlack{3000};

bool succeeds(const std::string& command) {
  return std::system((command + " > /dev/null 2>&1").c_str()) == 0;
}

/// A switch and a host per rank; the test is skipped where there can be none.
class SilenceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0 || !succeeds("ip -V")) {
      GTEST_SKIP() << "network namespaces need root and iproute2";
    }
    // In a changed root directory iproute2 makes one that it cannot enter.
    if (!succeeds("ip netns add " + switch_) || !succeeds(on_switch("link set lo up"))) {
      GTEST_SKIP() << "this machine makes no network namespaces";
    }
    bool is_up = succeeds(on_switch("link add bridge type bridge")) &&
                 succeeds(on_switch("link set bridge up"));
    for (int r = 0; r < kRanks; ++r) {
      const std::string port = "port" + std::to_string(r);
      const std::string address = "10.79.0." + std::to_string(r + 1) + "/24";
      is_up = is_up && succeeds("ip netns add " + host(r)) &&
              succeeds("ip link add eth0 netns " + host(r) + " type veth peer name " + port +
                       " netns " + switch_) &&
              succeeds(on_switch("link set " + port + " master bridge up")) &&
              succeeds("ip -n " + host(r) + " address add " + address + " dev eth0") &&
              succeeds("ip -n " + host(r) + " link set eth0 up") &&
              succeeds("ip -n " + host(r) + " link set lo up");
    }
    ASSERT_TRUE(is_up);
  }
  void TearDown() override {
    for (int r = 0; r < kRanks; ++r) succeeds("ip netns delete " + host(r));
    succeeds("ip netns delete " + switch_);
  }

  std::string host(int rank) const { return switch_ + "-h" + std::to_string(rank); }
  std::string on_switch(const std::string& command) const {
    return "ip -n " + switch_ + " " + command;
  }
  void cut() const {
    ASSERT_TRUE(succeeds(on_switch("link set port" + std::to_string(kVictim) + " down")));
  }
  void mend() const {
    ASSERT_TRUE(succeeds(on_switch("link set port" + std::to_string(kVictim) + " up")));
  }

  /// Runs `body` on each rank, on its host, when all are connected.
  void run(const char* silence, const std::function<void(Rank&, Comm&)>& body,
           const RunOptions& options = {}) const {
    run_ranks(
        kRanks,
        [&](Rank& rank) {
          const OwnedFd space(::open(("/run/netns/" + host(rank.rank)).c_str(), O_RDONLY));
          ASSERT_EQ(::setns(space, CLONE_NEWNET), 0);
          ::setenv("Q7X2_HOST_ID", std::to_string(rank.rank).c_str(), 1);
          ::setenv("Q7X2_SILENCE", silence, 1);
          ::setenv("MASTER_ADDR", "10.79.0.1", 1);
          ::setenv("UCX_TLS", "tcp", 1);
          Comm comm(rank.group("world", {}, /*eager=*/true));
          for (int i = 0; i < 3; ++i) reduce(comm);
          rank.barrier();
          std::this_thread::sleep_for(milliseconds(300));  // heartbeats have begun
          body(rank, comm);
        },
        options);
  }

  /// Runs `body` in a process on the victim's host, whose cable is cut.
  void on_host_without_link(const std::function<void()>& body) const {
    cut();
    run_ranks(1, [&](Rank&) {
      const OwnedFd space(::open(("/run/netns/" + host(kVictim)).c_str(), O_RDONLY));
      ASSERT_EQ(::setns(space, CLONE_NEWNET), 0);
      ::setenv("MASTER_ADDR", "10.79.0.1", 1);
      // The kernel tells of a lost carrier a moment later.
      const TimePoint give_up = Clock::now() + kSlack;
      while (!usable_nics().empty() && Clock::now() < give_up) {
        std::this_thread::sleep_for(milliseconds(10));
      }
      EXPECT_TRUE(usable_nics().empty());
      body();
    });
  }

  static void reduce(Comm& comm) {
    const auto data = buffer<int32_t>(10'000, comm.rank() + 1);
    comm.succeed(*comm.all_reduce(data));
    EXPECT_EQ(std::count(data->begin(), data->end(), kRanks * (kRanks + 1) / 2), 10'000);
  }

  const std::string switch_ = "q7x2cpp-" + std::to_string(::getpid());
};

void expect_named(const Error& error, ErrorCode code, const std::string& why) {
  EXPECT_EQ(to_string(error.code()), std::string(to_string(code))) << error.what();
  EXPECT_EQ(error.rank(), kVictim) << error.what();
  EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
}

/// Stops this process; a child of it wakes it.
void stop_for(milliseconds duration) {
  const pid_t self = ::getpid();
  if (::fork() == 0) {
    std::this_thread::sleep_for(duration);
    ::kill(self, SIGCONT);
    ::_exit(0);
  }
  ::raise(SIGSTOP);
  ::wait(nullptr);
}

TEST_F(SilenceTest, AHostThatIsCutOffIsNamed) {
  run("1", [&](Rank& rank, Comm& comm) {
    const TimePoint start = Clock::now();
    if (rank.rank == 0) cut();
    if (rank.rank == kVictim) {
      const Error error = comm.failure(*comm.all_reduce(buffer<int32_t>(10)));
      EXPECT_EQ(error.code(), ErrorCode::kPeerFailed) << error.what();
      return;
    }
    const Error error = comm.failure(*comm.all_reduce(buffer<int32_t>(10)));
    expect_named(error, ErrorCode::kPeerFailed, "has not answered for 1.");
    EXPECT_LT(Clock::now() - start, milliseconds(1000) + kSlack);
    RecordProperty("noticed_ms", static_cast<int>((Clock::now() - start) / milliseconds(1)));
  });
}

// Else the others would send their heartbeats to themselves, and take its silence for an answer.
TEST_F(SilenceTest, AHostWhoseLinkIsJustComingUpNamesItsAddress) {
  on_host_without_link([] { EXPECT_EQ(nic_roles().address, 0x0a4f0003U); });
}

// UCX takes the interfaces that are up when it starts.
TEST_F(SilenceTest, ALinkThatIsOutForAMomentIsWaitedFor) {
  on_host_without_link([&] {
    ::setenv("Q7X2_SILENCE", "20", 1);
    std::thread later([&] {
      std::this_thread::sleep_for(milliseconds(300));
      mend();
    });
    EXPECT_EQ(nic_roles().shared, std::vector<std::string>{"eth0"});
    later.join();
  });
}

TEST_F(SilenceTest, AShortOutageIsSurvived) {
  run("3", [&](Rank& rank, Comm& comm) {
    if (rank.rank == 0) {
      cut();
      std::this_thread::sleep_for(milliseconds(1200));
      mend();
    }
    for (int i = 0; i < 20; ++i) {
      reduce(comm);
      std::this_thread::sleep_for(milliseconds(100));
    }
    rank.barrier();
  });
}

TEST_F(SilenceTest, LostPacketsAreSurvived) {
  if (!succeeds("nft --version")) {
    GTEST_SKIP() << "nft (apt-get install nftables) drops the packets";
  }
  ASSERT_TRUE(
      succeeds("ip netns exec " + switch_ +
               " nft 'add table bridge loss; add chain bridge loss packets { type filter hook "
               "forward priority 0; }; add rule bridge loss packets numgen random mod 100 < 5 "
               "drop'"));
  run("2",
      [&](Rank& rank, Comm& comm) {
        for (int i = 0; i < 40; ++i) {
          reduce(comm);
          std::this_thread::sleep_for(milliseconds(50));
        }
        rank.barrier();
      },
      {.deadline = std::chrono::seconds(60)});
}

TEST_F(SilenceTest, AKilledProcessIsNamedOnOtherHosts) {
  run("60",
      [&](Rank& rank, Comm& comm) {
        if (rank.rank == kVictim) {
          // With copies of its sockets: its end must not wait for this child's.
          if (::fork() == 0) {
            ::sleep(5);
            ::_exit(0);
          }
          ::raise(SIGKILL);
        }
        const TimePoint start = Clock::now();
        const Error error = comm.failure(*comm.all_reduce(buffer<int32_t>(10)));
        expect_named(error, ErrorCode::kPeerFailed, "failed: its ");
        EXPECT_LT(Clock::now() - start, milliseconds(300) + kSlack);
      },
      {.killed = {kVictim}});
}

TEST_F(SilenceTest, AStoppedProcessIsWaitedFor) {
  run("0.3", [&](Rank& rank, Comm& comm) {
    if (rank.rank == kVictim) stop_for(milliseconds(2500));
    reduce(comm);
    rank.barrier();
  });
}

TEST_F(SilenceTest, AStoppedProcessIsLateAtTheDeadline) {
  run("0.3", [&](Rank& rank, Comm& comm) {
    if (rank.rank == kVictim) {
      stop_for(milliseconds(3000));
      EXPECT_EQ(comm.failure(*comm.barrier()).code(), ErrorCode::kTimeout);
    } else {
      const TimePoint start = Clock::now();
      const Error error = comm.failure(*comm.all_reduce(buffer<int32_t>(10), milliseconds(1500)));
      expect_named(error, ErrorCode::kTimeout, "is late: its host answers");
      EXPECT_GE(Clock::now() - start, milliseconds(1400));
      EXPECT_LT(Clock::now() - start, milliseconds(1500) + kSlack);
    }
    rank.barrier();
  });
}

}  // namespace
}  // namespace q7x2
