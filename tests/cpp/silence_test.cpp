// Virtual hosts: links that are cut, lose packets or come back, and processes that are killed or
// stopped on another host.
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "process_state.h"
#include "virtual_hosts.h"

namespace q7x2 {
namespace {

using std::chrono::milliseconds;
using test::buffer;
using test::Comm;
using test::expect_named;
using test::kVictim;
using test::Rank;

class SilenceTest : public test::VirtualHosts {};

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
    if (rank.rank == 0) cut();
    if (rank.rank == kVictim) {
      const Error error = comm.failure(*comm.all_reduce(buffer<int32_t>(10)));
      EXPECT_EQ(error.code(), ErrorCode::kPeerFailed) << error.what();
      return;
    }
    const Error error = comm.failure(*comm.all_reduce(buffer<int32_t>(10)));
    expect_named(error, ErrorCode::kPeerFailed, "has not answered for ");
  });
}

// Else the others would send their heartbeats to themselves, and take its silence for an answer.
TEST_F(SilenceTest, AHostWhoseLinkIsJustComingUpNamesItsAddress) {
  on_host_without_link([] { EXPECT_EQ(nic_roles().address.text(), "10.79.0.3"); });
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
  if (const std::string why = cannot_drop(); !why.empty()) GTEST_SKIP() << why;
  drop("numgen random mod 100 < 5");
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
        const Error error = comm.failure(*comm.all_reduce(buffer<int32_t>(10)));
        expect_named(error, ErrorCode::kPeerFailed, "failed: its ");
      },
      {.killed = {kVictim}});
}

// No handler of a fork runs in such a child, so it keeps copies of all files of the process.
TEST_F(SilenceTest, AKilledProcessIsNamedAtOnceAlsoIfAChildByTheSystemCallLivesOn) {
  run("60",
      [&](Rank& rank, Comm& comm) {
        if (rank.rank == kVictim) {
          if (::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr) == 0) {
            rank.get(0, "named");
            rank.get(1, "named");
            ::_exit(0);
          }
          ::raise(SIGKILL);
        }
        const Error error = comm.failure(*comm.all_reduce(buffer<int32_t>(10)));
        expect_named(error, ErrorCode::kPeerFailed, "failed: its process has ended");
        rank.put("named", "");
      },
      {.killed = {kVictim}, .deadline = std::chrono::seconds(20)});
}

TEST_F(SilenceTest, AProcessThatBecomesAnotherProgramIsNamedOnOtherHosts) {
  run("60",
      [&](Rank& rank, Comm& comm) {
        if (rank.rank == kVictim) ::execl("/bin/sleep", "sleep", "60", nullptr);
        const Error error = comm.failure(*comm.all_reduce(buffer<int32_t>(10)));
        expect_named(error, ErrorCode::kPeerFailed, "failed: its process has ended");
        rank.put("named", "");
        if (rank.rank != 0) return;
        rank.get(1, "named");
        ::kill(rank.pid_of(kVictim), SIGKILL);
      },
      {.killed = {kVictim}, .deadline = std::chrono::seconds(20)});
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
      ::raise(SIGSTOP);
      EXPECT_EQ(comm.failure(*comm.barrier()).code(), ErrorCode::kTimeout);
    } else {
      test::await_state(rank.pid_of(kVictim), 'T');
      const Error error = comm.failure(*comm.all_reduce(buffer<int32_t>(10), milliseconds(1500)));
      expect_named(error, ErrorCode::kTimeout, "is late: its host answers");
      rank.put("has raised", "");
      if (rank.rank == 0) {
        rank.get(1, "has raised");
        ::kill(rank.pid_of(kVictim), SIGCONT);
      }
    }
    rank.barrier();
  });
}

}  // namespace
}  // namespace q7x2
