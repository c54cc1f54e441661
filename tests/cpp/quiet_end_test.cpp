// A call that fails is done when nothing touches its memory any more, and soon.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "comm.h"
#include "process_state.h"
#include "ranks.h"

namespace q7x2 {
namespace {

using std::chrono::milliseconds;
using test::buffer;
using test::Comm;
using test::Rank;
using test::run_ranks;

constexpr size_t kLong = size_t{4} << 20;

/// Messages of ranks that count as one host each go over TCP, of others through UCX's shared
/// memory.
class QuietEnd : public testing::TestWithParam<const char*> {
 protected:
  static void use_transport(const Rank& rank) {
    if (std::string(GetParam()) != "tcp") return;
    ::setenv("Q7X2_HOST_ID", std::to_string(rank.rank).c_str(), 1);
    ::setenv("UCX_TLS", "tcp", 1);
  }
};

INSTANTIATE_TEST_SUITE_P(Transports, QuietEnd, testing::Values("tcp", "memory"),
                         [](const auto& suite) { return std::string(suite.param); });

TEST_P(QuietEnd, ASendThatNobodyTakesEndsByItself) {
  run_ranks(2, [](Rank& rank) {
    use_transport(rank);
    {
      Comm comm(rank.group());
      comm.succeed(*comm.barrier());
      std::shared_ptr<MessageTask> send;
      if (rank.rank == 0) send = comm.send(1, 1, buffer<int32_t>(kLong));
      rank.barrier();
      if (send) {
        comm.group().abort(Error(ErrorCode::kAborted, "enough"));
        EXPECT_EQ(comm.failure(*send).code(), ErrorCode::kAborted);
      } else {
        EXPECT_EQ(comm.failure(*comm.barrier()).code(), ErrorCode::kAborted);
      }
      rank.barrier();
    }
    // It cost no connection: a group that was made before can still be used.
    Comm next(rank.group("next"));
    next.succeed(*next.all_reduce(buffer<int32_t>(1000)));
  });
}

TEST_P(QuietEnd, OtherGroupsKeepTheirConnections) {
  run_ranks(2, [](Rank& rank) {
    use_transport(rank);
    Comm other(rank.group("other"));
    other.succeed(*other.all_reduce(buffer<int32_t>(1000)));
    Comm comm(rank.group());
    std::shared_ptr<MessageTask> pending;
    if (rank.rank == 0) {
      pending = comm.send(1, 1, buffer<int32_t>(kLong));
    } else {
      pending = comm.receive(0, 2, buffer<int32_t>(kLong));
    }
    rank.barrier();
    if (rank.rank == 1) comm.group().abort(Error(ErrorCode::kAborted, "enough"));
    comm.await(*pending);
    // What rank 1 drops may be complete at rank 0 before it hears of the abort.
    EXPECT_TRUE(pending->error() || rank.rank == 0);
    if (pending->error()) {
      EXPECT_EQ(pending->error()->code(), ErrorCode::kAborted);
    }
    rank.barrier();
    std::this_thread::sleep_for(milliseconds(100));
    other.succeed(*other.all_reduce(buffer<int32_t>(1000)));
  });
}

TEST_P(QuietEnd, AStoppedPeerDoesNotHoldUpAnError) {
  run_ranks(2, [](Rank& rank) {
    use_transport(rank);
    Comm comm(rank.group());
    comm.succeed(*comm.barrier());
    rank.barrier();
    if (rank.rank == 1) {
      ::raise(SIGSTOP);
      EXPECT_TRUE(comm.failure(*comm.barrier()).code() != ErrorCode::kInternal);
      return;
    }
    test::await_state(rank.pid_of(1), 'T');
    const auto data = buffer<int32_t>(kLong);
    const auto send = comm.send(1, 1, data, milliseconds(300));
    EXPECT_EQ(comm.failure(*send).code(), ErrorCode::kTimeout);
    comm.group().abort(Error(ErrorCode::kAborted, "enough"));
    ::kill(rank.pid_of(1), SIGCONT);
  });
}

}  // namespace
}  // namespace q7x2
