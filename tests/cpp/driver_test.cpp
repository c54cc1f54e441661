// A process whose UCX, or whose memory, fails in the driver's own thread lives on; its groups fail.
#include "transport/run/driver.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "comm.h"
#include "ranks.h"
#include "transport/quirks/tcp_sockets.h"

namespace q7x2 {
namespace {

using test::buffer;
using test::Comm;
using test::Rank;
using test::run_ranks;

bool is_eventfd(int fd) {
  std::array<char, 64> name{};
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  return ::readlink(path.c_str(), name.data(), name.size() - 1) > 0 &&
         std::string(name.data()) == "anon_inode:[eventfd]";
}

/// From now on the worker cannot be armed: its own descriptor of events is one that nobody can
/// read.
void break_worker(Runtime& runtime) {
  Locked locked(runtime.lock());
  const int unreadable = ::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_GE(unreadable, 0);
  int broken = 0;
  for (const Watched& each : watched_by(runtime.reactor().worker().event_fd())) {
    if (!is_eventfd(each.fd)) continue;
    ASSERT_EQ(::dup2(unreadable, each.fd), each.fd);
    ++broken;
  }
  ::close(unreadable);
  ASSERT_GT(broken, 0);
}

void expect_the_groups_failed(Rank& rank, Comm& comm, const Task& task) {
  comm.await(task);
  ASSERT_TRUE(task.error());
  EXPECT_EQ(task.error()->code(), ErrorCode::kTransport);
  const std::string text = task.error()->what();
  EXPECT_NE(text.find("rank 0 (pid"), std::string::npos) << rank.rank << ": " << text;
  EXPECT_NE(text.find("could not go on: UCX could not arm its event descriptor"), std::string::npos)
      << text;
  rank.barrier();
}

TEST(Driver, AFaultInAThreadThatWaitsFailsTheGroups) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    comm.succeed(*comm.barrier());
    rank.barrier();
    if (rank.rank == 0) break_worker(rank.runtime());
    // Rank 1 does not come before.
    while (rank.rank == 1 && !comm.group().error()) std::this_thread::yield();
    const auto task = comm.barrier();
    expect_the_groups_failed(rank, comm, *task);
  });
}

TEST(Driver, AFaultInItsOwnThreadFailsTheGroups) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    comm.succeed(*comm.barrier());
    rank.barrier();
    if (rank.rank == 0) {
      break_worker(rank.runtime());
      rank.runtime().wake();
      while (!comm.group().error()) std::this_thread::yield();
    }
    const auto task = comm.barrier();
    expect_the_groups_failed(rank, comm, *task);
  });
}

}  // namespace
}  // namespace q7x2
