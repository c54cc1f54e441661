// The runtime and its groups: they connect, wait, call back, shut down and start again.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "comm.h"
#include "ranks.h"
#include "transport/run/group_facts.h"

namespace q7x2 {
namespace {

using std::chrono::milliseconds;
using test::buffer;
using test::Comm;
using test::Rank;
using test::run_ranks;
using test::ScriptedBootstrap;

ErrorCode code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  throw std::runtime_error("expected an error");
}

// ------------------------------------------------------------------------------------- connecting

TEST(Group, UsesSharedMemoryOnOneHost) {
  run_ranks(3, [](Rank& rank) {
    Comm comm(rank.group());
    EXPECT_EQ(comm.size(), 3);
    EXPECT_EQ(comm.group().membership().host_ranks().size(), 3U);
    comm.succeed(*comm.all_reduce(buffer<int32_t>(300'000)));
    for (int other = 0; other < 3; ++other) {
      EXPECT_TRUE(comm.group().membership().same_host(other));
      if (other == rank.rank) continue;
      EXPECT_TRUE(comm.group().messages().shares_memory(other));
      const auto transports = transports_of(comm.group(), other);
      EXPECT_FALSE(transports.empty());
      for (const std::string& name : transports) {
        EXPECT_TRUE(name == "posix" || name == "sysv") << name;
      }
    }
    EXPECT_EQ(code_of([&] { transports_of(comm.group(), 3); }), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code_of([&] { transports_of(comm.group(), -1); }), ErrorCode::kInvalidArgument);
  });
}

TEST(Group, RefusesWhatDoesNotFit) {
  run_ranks(2, [](Rank& rank) {
    const auto echo = [](const std::string&, const std::string& mine) {
      return std::vector<std::string>{mine};
    };
    const auto refused = [&](int own, int size, const ScriptedBootstrap::Exchange& exchange) {
      ScriptedBootstrap bootstrap(rank, exchange);
      return code_of([&] { make_group(rank.runtime(), own, size, "bad", bootstrap); });
    };
    EXPECT_EQ(refused(0, 0, echo), ErrorCode::kInvalidArgument);
    EXPECT_EQ(refused(1, 1, echo), ErrorCode::kInvalidArgument);
    EXPECT_EQ(refused(-1, 1, echo), ErrorCode::kInvalidArgument);
    EXPECT_EQ(refused(0, 1 << 20, echo), ErrorCode::kInvalidArgument);
    // One process as two ranks, foreign bytes, another world size.
    const auto twice = [](const std::string&, const std::string& mine) {
      return std::vector{mine, mine};
    };
    EXPECT_EQ(refused(rank.rank, 2, twice), ErrorCode::kMismatch);
    const auto foreign = [](const std::string&, const std::string& mine) {
      return std::vector{mine, std::string("?")};
    };
    EXPECT_EQ(refused(0, 2, foreign), ErrorCode::kMismatch);
    const auto other_size = [&](const std::string&, const std::string& mine) {
      rank.put("size", mine);
      const std::string theirs = rank.get(1 - rank.rank, "size");
      return rank.rank == 0 ? std::vector{mine, theirs} : std::vector{theirs, mine, mine};
    };
    EXPECT_EQ(refused(rank.rank, 2 + rank.rank, other_size), ErrorCode::kMismatch);
    // An exchange that fails leaves nothing behind.
    const auto broken = [](const std::string&, const std::string&) -> std::vector<std::string> {
      throw Error(ErrorCode::kTimeout, "the store is gone");
    };
    EXPECT_EQ(refused(0, 2, broken), ErrorCode::kTimeout);
    Comm comm(rank.group());
    comm.succeed(*comm.barrier());
  });
}

TEST(Group, TooFewCardsAreRefused) {
  run_ranks(1, [](Rank& rank) {
    const auto echo = [](const std::string&, const std::string& mine) {
      return std::vector<std::string>{mine};
    };
    ScriptedBootstrap bootstrap(rank, echo);
    EXPECT_EQ(code_of([&] { make_group(rank.runtime(), 0, 2, "bad", bootstrap); }),
              ErrorCode::kMismatch);
  });
}

TEST(Group, ManyOneAfterTheOther) {
  run_ranks(2, [](Rank& rank) {
    for (int i = 0; i < 150; ++i) {
      Comm comm(rank.group(std::to_string(i)));
      const auto data = buffer<int32_t>(10, i);
      comm.succeed(*comm.all_reduce(data));
      ASSERT_EQ(data->back(), 2 * i);
    }
  });
}

TEST(Runtime, SeveralLives) {
  run_ranks(2, [](Rank& rank) {
    uint64_t previous = 0;
    for (int i = 0; i < 5; ++i) {
      {
        Comm comm(rank.group(std::to_string(i)));
        EXPECT_NE(rank.runtime().process(), previous);
        previous = rank.runtime().process();
        const auto data = buffer<int32_t>(100'000, 1);
        comm.succeed(*comm.all_reduce(data));
        EXPECT_EQ(data->back(), 2);
      }
      rank.drop_runtime();
    }
  });
}

TEST(Runtime, ShutdownLeavesEveryGroup) {
  run_ranks(2, [](Rank& rank) {
    Comm first(rank.group("first"));
    Comm second(rank.group("second"));
    first.succeed(*first.barrier());
    second.succeed(*second.barrier());
    rank.barrier();
    Runtime::shutdown_instance();
    Runtime::shutdown_instance();
    EXPECT_EQ(first.failure(*first.barrier()).code(), ErrorCode::kAborted);
  });
}

TEST(Runtime, ShutdownLeavesWaitersWhereTheyAre) {
  run_ranks(2, [](Rank& rank) {
    // Not destroyed, like all that a thread uses that never comes back.
    auto& comm = *new Comm(rank.group());
    auto& came_back = *new std::atomic<bool>(false);
    comm.succeed(*comm.barrier());
    const auto task = comm.receive(1 - rank.rank, 0, buffer<int32_t>(4));
    std::thread([&runtime = rank.runtime(), task, &came_back] {
      runtime.wait(*task, TimePoint::max());
      came_back = true;
    }).detach();
    while (!rank.runtime().parking().has_waiters()) std::this_thread::sleep_for(milliseconds(1));
    rank.barrier();
    Runtime::shutdown_instance(/*others_run=*/true);
    EXPECT_TRUE(task->done());
    std::this_thread::sleep_for(milliseconds(200));
    EXPECT_FALSE(came_back);
    EXPECT_EQ(comm.failure(*comm.barrier()).code(), ErrorCode::kAborted) << "this thread goes on";
  });
}

TEST(Runtime, AForkedChildIsRefused) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    comm.succeed(*comm.barrier());
    const pid_t child = ::fork();
    if (child == 0) {
      const bool refused = comm.group().runtime().forked() && code_of([&] {
                                                                comm.all_reduce(buffer<int32_t>(1));
                                                              }) == ErrorCode::kAborted;
      ::_exit(refused ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    comm.succeed(*comm.barrier());
  });
}

// -------------------------------------------------------------------------------------- waiting

TEST(Runtime, WaitEndsAtItsDeadline) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    const auto data = buffer<int32_t>(4);
    if (rank.rank == 0) {
      const auto task = comm.receive(1, 0, data);
      for (const milliseconds patience : {milliseconds(0), milliseconds(1), milliseconds(120)}) {
        const TimePoint deadline = Clock::now() + patience;
        EXPECT_FALSE(rank.runtime().wait(*task, deadline));
        EXPECT_GE(Clock::now(), deadline);
      }
      EXPECT_FALSE(task->done());
      rank.barrier();
      comm.succeed(*task);
      EXPECT_TRUE(rank.runtime().wait(*task, Clock::now() - milliseconds(1))) << "it is done";
      EXPECT_GE(task->finished(), task->submitted());
    } else {
      rank.barrier();
      comm.succeed(*comm.send(0, 0, data));
    }
  });
}

TEST(Runtime, CallbacksMayStartAndWait) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    const auto data = buffer<int32_t>(1000, 1);
    std::promise<int32_t> result;
    const auto first = comm.all_reduce(data);
    first->notify([&] {
      try {
        comm.succeed(*comm.all_reduce(data));
        result.set_value(data->back());
      } catch (...) {
        result.set_exception(std::current_exception());
      }
    });
    auto future = result.get_future();
    ASSERT_EQ(future.wait_for(test::kPatience), std::future_status::ready);
    EXPECT_EQ(future.get(), 4);

    std::promise<std::thread::id> late;
    first->notify([&] { late.set_value(std::this_thread::get_id()); });  // long done
    auto thread = late.get_future();
    ASSERT_EQ(thread.wait_for(test::kPatience), std::future_status::ready);
    EXPECT_NE(thread.get(), std::this_thread::get_id());
  });
}

TEST(Runtime, CallbacksRunOnceAlsoAfterAnError) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    if (rank.rank == 0) {
      std::atomic<int> calls = 0;
      std::promise<void> called;
      const auto task = comm.receive(1, 0, buffer<int32_t>(1), milliseconds(50));
      task->notify([&] {
        if (++calls == 1) called.set_value();
      });
      ASSERT_EQ(called.get_future().wait_for(test::kPatience), std::future_status::ready);
      EXPECT_EQ(comm.failure(*task).code(), ErrorCode::kTimeout);
      comm.succeed(*comm.barrier());
      EXPECT_EQ(calls, 1);
    } else {
      comm.succeed(*comm.barrier());
    }
  });
}

TEST(Runtime, ManyThreadsWaitForOneTask) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    const auto data = buffer<int32_t>(1 << 20, 1);
    const auto task = comm.all_reduce(data);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) threads.emplace_back([&] { comm.succeed(*task); });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(data->back(), 2);
  });
}

}  // namespace
}  // namespace q7x2
