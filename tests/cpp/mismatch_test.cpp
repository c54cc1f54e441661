// Ranks that make calls that do not fit together: every rank gets a typed error, soon.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "comm.h"
#include "ranks.h"
#include "transport/peer/control.h"

namespace q7x2 {
namespace {

using test::buffer;
using test::Comm;
using test::Rank;
using test::run_ranks;

/// Rank 1 makes another call than the others. Each rank learns of it in this call or, where the
/// call needed nobody else, in one of the next.
void expect_mismatch(const std::function<std::shared_ptr<Task>(Comm&, bool odd)>& start) {
  run_ranks(3, [&](Rank& rank) {
    Comm comm(rank.group());
    rank.barrier();  // else a slow rank learns of it while it makes its group
    std::shared_ptr<Task> task = start(comm, rank.rank == 1);
    const TimePoint give_up = Clock::now() + std::chrono::seconds(5);
    for (comm.await(*task); !task->error() && Clock::now() < give_up; comm.await(*task)) {
      task = comm.barrier(std::chrono::seconds(5));
    }
    ASSERT_TRUE(task->error()) << "went unnoticed";
    const Error error = *task->error();
    EXPECT_EQ(error.code(), ErrorCode::kMismatch) << error.what();
    EXPECT_NE(std::string(error.what()).find("disagree"), std::string::npos) << error.what();
    ASSERT_TRUE(comm.group().error());
    EXPECT_EQ(comm.group().error()->code(), ErrorCode::kMismatch);
    EXPECT_EQ(comm.failure(*comm.barrier()).code(), ErrorCode::kMismatch);
    rank.barrier();
  });
}

std::shared_ptr<Task> all_reduce_of(Comm& comm, size_t count) {
  return comm.all_reduce(buffer<int32_t>(count));
}

TEST(Mismatch, Counts) {
  expect_mismatch([](Comm& comm, bool odd) { return all_reduce_of(comm, odd ? 101 : 100); });
}

TEST(Mismatch, CountsOfSeveralSlices) {
  expect_mismatch(
      [](Comm& comm, bool odd) { return all_reduce_of(comm, odd ? 1'000'000 : 500'000); });
}

TEST(Mismatch, SmallAndLarge) {
  expect_mismatch([](Comm& comm, bool odd) { return all_reduce_of(comm, odd ? 1'000'000 : 1); });
}

TEST(Mismatch, NothingAndSomething) {
  // The rank that needs nobody is in its next collective before the others begin, or the other way.
  for (const bool odd_first : {true, false}) {
    expect_mismatch([odd_first](Comm& comm, bool odd) {
      if (odd != odd_first) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      return all_reduce_of(comm, odd ? 0 : 100);
    });
  }
}

TEST(Mismatch, DTypes) {
  expect_mismatch([](Comm& comm, bool odd) {
    return comm.flat(Collective::kAllReduce, buffer<int32_t>(100),
                     odd ? DType::kFloat32 : DType::kInt32);
  });
}

TEST(Mismatch, Reductions) {
  expect_mismatch([](Comm& comm, bool odd) {
    return comm.flat(Collective::kAllReduce, buffer<int32_t>(100), DType::kInt32, test::kLong, -1,
                     odd ? ReduceKind::kMax : ReduceKind::kSum);
  });
}

TEST(Mismatch, Roots) {
  expect_mismatch([](Comm& comm, bool odd) {
    return comm.flat(Collective::kBroadcast, buffer<int32_t>(100), DType::kBytes, test::kLong,
                     odd ? 1 : 0);
  });
}

TEST(Mismatch, RootsThatAllWait) {
  expect_mismatch([](Comm& comm, bool) {
    return comm.flat(Collective::kReduce, buffer<int32_t>(100), DType::kInt32, test::kLong,
                     comm.rank());
  });
}

TEST(Mismatch, PiecesThatAreEmptyOnOneSide) {
  // Of rank 0's pieces and of the others'.
  for (const auto& [sent, expected] : {std::pair(0, 100), std::pair(100, 0), std::pair(9, 100)}) {
    expect_mismatch([=](Comm& comm, bool odd) {
      const auto data = buffer<std::byte>(1000);
      CollectiveCall call;
      call.collective = Collective::kAllToAll;
      call.uneven = true;
      for (int r = 0; r < comm.size(); ++r) {
        const bool is_own = r == comm.rank();
        const auto length = static_cast<size_t>(is_own ? 5 : odd ? sent : expected);
        call.input.push_back({data->data(), length});
        call.output.push_back({data->data() + 500, length});
      }
      return comm.start(std::move(call), data);
    });
  }
}

TEST(Mismatch, Collectives) {
  expect_mismatch([](Comm& comm, bool odd) -> std::shared_ptr<Task> {
    return odd ? comm.barrier() : all_reduce_of(comm, 100);
  });
}

// A rank that waits asks, and may be answered before its peer makes the call. If a message that
// does not fit arrives meanwhile, that answer is still on its way when the rank asks again.
TEST(Mismatch, AnAnswerFromBeforeTheCallDoesNotSayWhatTheCallIs) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    rank.barrier();
    if (rank.rank == 1) {
      const std::shared_ptr<Task> task = all_reduce_of(comm, 100);
      {
        Locked locked(rank.runtime().lock());
        Control answer;
        answer.type = ControlType::kAnswer;
        answer.sender = 0;
        answer.receiver = 1;
        answer.process = comm.group().membership().peer_info(0).process;
        answer.sequence = task->record(locked).sequence;
        comm.group().agreement().disagree(locked, *task, 0);
        answer.state = CallState::kNotMade;
        comm.group().handle(locked, answer);
        EXPECT_FALSE(task->is_over(locked));
        answer.state = CallState::kWaiting;
        answer.text = "called a barrier";
        comm.group().handle(locked, answer);
        EXPECT_TRUE(task->is_over(locked));
      }
      const std::string text = comm.failure(*task).what();
      EXPECT_NE(text.find("called all_reduce (sequence 1, 400 bytes"), std::string::npos) << text;
      EXPECT_NE(text.find("rank 0 (pid "), std::string::npos) << text;
      EXPECT_NE(text.find("called a barrier"), std::string::npos) << text;
    }
    rank.barrier();
  });
}

}  // namespace
}  // namespace q7x2
