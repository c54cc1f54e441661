// Whom the sockets of a process tell of its end, and that nobody else has them.
#include "transport/peer/life_line.h"

#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string>

#include <gtest/gtest.h>

#include "comm.h"
#include "ranks.h"

namespace q7x2 {
namespace {

using test::buffer;
using test::Comm;
using test::Rank;
using test::run_ranks;

TEST(LifeLine, AProcessOfThisHostThatBecomesAnotherProgramIsNamed) {
  run_ranks(3,
            [](Rank& rank) {
              Comm comm(rank.group());
              comm.succeed(*comm.barrier());
              rank.barrier();
              if (rank.rank == 2) ::execl("/bin/sleep", "sleep", "60", nullptr);
              const auto task = comm.all_reduce(buffer<int32_t>(10));
              comm.await(*task);
              ASSERT_TRUE(task->error());
              const std::string text = task->error()->what();
              EXPECT_EQ(task->error()->code(), ErrorCode::kPeerFailed) << text;
              EXPECT_EQ(task->error()->rank(), 2) << text;
              EXPECT_NE(text.find("has become another program (exec)"), std::string::npos) << text;
              rank.put("named", "");
              if (rank.rank != 0) return;
              rank.get(1, "named");
              ::kill(rank.pid_of(2), SIGKILL);
            },
            {.killed = {2}});
}

TEST(LifeLine, AProcessThatLeavesInGoodOrderIsNotNamed) {
  run_ranks(2, [](Rank& rank) {
    {
      Comm comm(rank.group("all"));
      comm.succeed(*comm.barrier());
      comm.group().leave();
    }
    rank.barrier();
    if (rank.rank == 1) rank.drop_runtime();
    rank.barrier();
    if (rank.rank == 0) {
      const TimePoint until = Clock::now() + std::chrono::milliseconds(100);
      while (Clock::now() < until) rank.runtime().drive();
    }
    Comm comm(rank.group("again"));
    comm.succeed(*comm.barrier());
    rank.barrier();
  });
}

/// Waits for the end of a connection. It is reset if the other end had not accepted it yet.
bool has_ended(int socket) {
  for (;;) {
    char byte = 0;
    const ssize_t count = ::recv(socket, &byte, 1, 0);
    if (count == 0 || (count < 0 && errno == ECONNRESET)) return true;
    if (count > 0 || errno != EAGAIN) return false;
    ::usleep(1000);
  }
}

TEST(LifeLine, NoChildKeepsIt) {
  constexpr uint64_t kProcess = 0x51fe'0000'0000'0001;
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t process = ::fork();
  if (process == 0) {
    LifeLine line(kProcess, MessageKey{}, {}, std::chrono::seconds(1));
    // Its child is made by the system call, and tells its number.
    const long child = ::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr);
    if (child == 0) ::pause();
    [[maybe_unused]] const ssize_t told = ::write(pipe[1], &child, sizeof(child));
    for (;;) ::pause();
  }
  long child = 0;
  ASSERT_EQ(::read(pipe[0], &child, sizeof(child)), static_cast<ssize_t>(sizeof(child)));
  const PrivateSocket socket = connect_to_life_line(kProcess);
  ASSERT_TRUE(socket.is_valid());
  char byte = 0;
  EXPECT_EQ(::recv(socket, &byte, 1, 0), -1) << "it is open";
  ::kill(process, SIGKILL);
  EXPECT_TRUE(has_ended(socket));
  EXPECT_EQ(::kill(static_cast<pid_t>(child), 0), 0) << "the child lives on";
  ::kill(static_cast<pid_t>(child), SIGKILL);
  ::waitpid(process, nullptr, 0);
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST(LifeLine, TellsThatItEndsInGoodOrder) {
  constexpr uint64_t kProcess = 0x51fe'0000'0000'0002;
  LifeLine line(kProcess, MessageKey{}, {}, std::chrono::seconds(1));
  EXPECT_FALSE(connect_to_life_line(kProcess + 1).is_valid());
  const PrivateSocket socket = connect_to_life_line(kProcess);
  ASSERT_TRUE(socket.is_valid());
  line.close();
  char byte = 0;
  EXPECT_EQ(::recv(socket, &byte, 1, 0), 1);
  EXPECT_EQ(byte, LifeLine::kLeft);
  EXPECT_TRUE(has_ended(socket));
}

}  // namespace
}  // namespace q7x2
