// Life and death of groups and ranks: connections, waits, callbacks, failures, time-outs,
// tear-down.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "comm.h"
#include "ranks.h"

namespace q7x2 {
namespace {

using std::chrono::milliseconds;
using test::buffer;
using test::Comm;
using test::Rank;
using test::run_ranks;
using test::RunOptions;

bool contains(const Error& error, const std::string& text) {
  return std::string(error.what()).find(text) != std::string::npos;
}

void expect_error(const Error& error, ErrorCode code, int rank) {
  EXPECT_EQ(to_string(error.code()), std::string(to_string(code))) << error.what();
  EXPECT_EQ(error.rank(), rank) << error.what();
  if (rank >= 0) {
    EXPECT_TRUE(contains(error, "rank " + std::to_string(rank))) << error.what();
  }
}

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
    EXPECT_TRUE(comm.group().one_host());
    EXPECT_EQ(comm.group().ranks_on_host(), 3);
    comm.succeed(*comm.all_reduce(buffer<int32_t>(300'000)));
    for (int other = 0; other < 3; ++other) {
      EXPECT_TRUE(comm.group().same_host(other));
      if (other == rank.rank) continue;
      EXPECT_TRUE(comm.group().shares_memory(other));
      const auto transports = comm.group().transports(other);
      EXPECT_FALSE(transports.empty());
      for (const std::string& name : transports) {
        EXPECT_TRUE(name == "posix" || name == "sysv") << name;
      }
    }
    EXPECT_EQ(code_of([&] { comm.group().transports(3); }), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code_of([&] { comm.group().transports(-1); }), ErrorCode::kInvalidArgument);
  });
}

TEST(Group, RefusesWhatDoesNotFit) {
  run_ranks(2, [](Rank& rank) {
    const auto echo = [](const std::string&, const std::string& mine, const auto&) {
      return std::vector<std::string>{mine};
    };
    const auto refused = [&](int own, int size, const Exchange& exchange) {
      return code_of([&] {
        Group::create(rank.runtime(), own, size, "bad", exchange, rank.awaiting(), false);
      });
    };
    EXPECT_EQ(refused(0, 0, echo), ErrorCode::kInvalidArgument);
    EXPECT_EQ(refused(1, 1, echo), ErrorCode::kInvalidArgument);
    EXPECT_EQ(refused(-1, 1, echo), ErrorCode::kInvalidArgument);
    EXPECT_EQ(refused(0, 1 << 20, echo), ErrorCode::kInvalidArgument);
    // One process as two ranks, foreign bytes, another world size.
    const auto twice = [](const std::string&, const std::string& mine, const auto&) {
      return std::vector{mine, mine};
    };
    EXPECT_EQ(refused(rank.rank, 2, twice), ErrorCode::kMismatch);
    const auto foreign = [](const std::string&, const std::string& mine, const auto&) {
      return std::vector{mine, std::string("?")};
    };
    EXPECT_EQ(refused(0, 2, foreign), ErrorCode::kMismatch);
    const auto other_size = [&](const std::string&, const std::string& mine, const auto&) {
      rank.put("size", mine);
      const std::string theirs = rank.get(1 - rank.rank, "size");
      return rank.rank == 0 ? std::vector{mine, theirs} : std::vector{theirs, mine, mine};
    };
    EXPECT_EQ(refused(rank.rank, 2 + rank.rank, other_size), ErrorCode::kMismatch);
    // An exchange that fails leaves nothing behind.
    const auto broken = [](const std::string&, const std::string&,
                           const auto&) -> std::vector<std::string> {
      throw Error(ErrorCode::kTimeout, "the store is gone");
    };
    EXPECT_EQ(refused(0, 2, broken), ErrorCode::kTimeout);
    Comm comm(rank.group());
    comm.succeed(*comm.barrier());
  });
}

TEST(Group, TooFewCardsAreRefused) {
  run_ranks(1, [](Rank& rank) {
    const auto echo = [](const std::string&, const std::string& mine, const auto&) {
      return std::vector<std::string>{mine};
    };
    EXPECT_EQ(
        code_of([&] { Group::create(rank.runtime(), 0, 2, "bad", echo, rank.awaiting(), false); }),
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

// ------------------------------------------------------------------------------------- failures

/// What every rank but the dead one must see.
void expect_peer_failed(Comm& comm, const Error& error, int dead, pid_t pid) {
  expect_error(error, ErrorCode::kPeerFailed, dead);
  EXPECT_TRUE(contains(error, "pid " + std::to_string(pid))) << error.what();
  ASSERT_TRUE(comm.group().error());
  expect_error(*comm.group().error(), ErrorCode::kPeerFailed, dead);
  expect_error(comm.failure(*comm.all_reduce(buffer<int32_t>(1))), ErrorCode::kPeerFailed, dead);
}

TEST(Death, InMidFlight) {
  for (const size_t count : {size_t{10}, size_t{500'000}}) {
    RunOptions options;
    options.killed = {2};
    run_ranks(
        4,
        [count](Rank& rank) {
          Comm comm(rank.group());
          std::thread killer;
          if (rank.rank == 2) {
            killer = std::thread([] {
              std::this_thread::sleep_for(milliseconds(50));
              ::kill(::getpid(), SIGKILL);
            });
          }
          const auto data = buffer<int32_t>(count);
          for (;;) {
            const auto task = comm.all_reduce(data);
            comm.await(*task);
            if (task->error()) {
              expect_peer_failed(comm, *task->error(), 2, rank.pid_of(2));
              return;
            }
          }
        },
        options);
  }
}

TEST(Death, OfOneThatWasNeverWaitedFor) {
  // Ranks 0 and 1 wait for each other's messages, which never come; rank 3 waits for nothing.
  RunOptions options;
  options.killed = {2};
  run_ranks(
      4,
      [](Rank& rank) {
        Comm comm(rank.group());
        if (rank.rank == 2) {
          rank.barrier();
          ::kill(::getpid(), SIGKILL);
        }
        std::shared_ptr<Task> task;
        if (rank.rank < 2) task = comm.receive(1 - rank.rank, 0, buffer<int32_t>(1));
        rank.barrier();
        if (task) {
          expect_peer_failed(comm, comm.failure(*task), 2, rank.pid_of(2));
        } else {
          const TimePoint give_up = Clock::now() + test::kPatience;
          while (!comm.group().error() && Clock::now() < give_up) {
            std::this_thread::sleep_for(milliseconds(5));
          }
          ASSERT_TRUE(comm.group().error()) << "an idle rank did not notice";
          expect_peer_failed(comm, *comm.group().error(), 2, rank.pid_of(2));
        }
      },
      options);
}

TEST(Death, OfOneThatNobodyHasTalkedTo) {
  RunOptions options;
  options.killed = {1};
  run_ranks(
      3,
      [](Rank& rank) {
        Comm comm(rank.group());
        if (rank.rank == 1) ::kill(::getpid(), SIGKILL);
        expect_error(comm.failure(*comm.all_reduce(buffer<int32_t>(100'000))),
                     ErrorCode::kPeerFailed, 1);
      },
      options);
}

TEST(Death, OfSeveralAtOnce) {
  RunOptions options;
  options.killed = {0, 3};
  run_ranks(
      5,
      [](Rank& rank) {
        Comm comm(rank.group());
        comm.succeed(*comm.barrier());
        if (rank.rank == 0 || rank.rank == 3) ::kill(::getpid(), SIGKILL);
        const Error error = comm.failure(*comm.all_reduce(buffer<int32_t>(10)));
        EXPECT_EQ(error.code(), ErrorCode::kPeerFailed);
        EXPECT_TRUE(error.rank() == 0 || error.rank() == 3) << error.what();
      },
      options);
}

TEST(Death, SparesGroupsWithoutTheDead) {
  RunOptions options;
  options.killed = {2};
  run_ranks(
      3,
      [](Rank& rank) {
        Comm world(rank.group());
        if (rank.rank == 2) {
          world.succeed(*world.barrier());
          ::kill(::getpid(), SIGKILL);
        }
        Comm survivors(rank.group("survivors", {0, 1}));
        world.succeed(*world.barrier());
        expect_error(world.failure(*world.all_reduce(buffer<int32_t>(1))), ErrorCode::kPeerFailed,
                     2);
        for (int i = 0; i < 10; ++i) {
          const auto data = buffer<int32_t>(100'000, 1);
          survivors.succeed(*survivors.all_reduce(data));
          EXPECT_EQ(data->back(), 2);
        }
        // And a new group of the survivors can be made.
        Comm next(rank.group("next", {1, 0}));
        next.succeed(*next.barrier());
      },
      options);
}

class LeaveDuring : public ::testing::TestWithParam<const char*> {};

// Also those that only wait for one who waits for the rank that left.
TEST_P(LeaveDuring, FailsThoseWhoStillNeedTheRank) {
  run_ranks(4, [](Rank& rank) {
    const auto other = rank.group("other");  // keeps the runtime, and so the process, connected
    Comm comm(rank.group(), GetParam());
    comm.succeed(*comm.all_reduce(buffer<int32_t>(10)));
    rank.barrier();
    if (rank.rank == 1) {
      comm.group().leave();
      comm.group().leave();
      EXPECT_EQ(comm.failure(*comm.barrier()).code(), ErrorCode::kAborted);
    } else {
      expect_error(comm.failure(*comm.all_reduce(buffer<int32_t>(10))), ErrorCode::kPeerLeft, 1);
    }
    rank.barrier();
  });
}

INSTANTIATE_TEST_SUITE_P(Algorithms, LeaveDuring,
                         ::testing::Values("direct", "ring", "recursive_doubling", "binomial_tree"),
                         [](const auto& each) { return std::string(each.param); });

TEST(Leave, AtTheEndIsNoFailure) {
  // Ranks end as soon as they have what they need; the others still get all of it.
  for (int repeat = 0; repeat < 3; ++repeat) {
    run_ranks(4, [](Rank& rank) {
      Comm comm(rank.group());
      for (int i = 0; i < 10; ++i) {
        const auto data = buffer<int32_t>(i % 2 == 0 ? 1 : 100'000, 1);
        comm.succeed(*comm.all_reduce(data));
        EXPECT_EQ(data->back(), 4);
      }
    });
  }
}

TEST(Leave, FailsWhatIsInProgressHere) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    if (rank.rank == 0) {
      const auto task = comm.receive(1, 0, buffer<int32_t>(1));
      EXPECT_EQ(comm.group().tasks().size(), 1U);
      comm.group().leave();
      EXPECT_EQ(comm.failure(*task).code(), ErrorCode::kAborted);
    }
    rank.barrier();
  });
}

TEST(Abort, EndsTheGroupEverywhere) {
  run_ranks(3, [](Rank& rank) {
    Comm other(rank.group("other"));
    Comm comm(rank.group());
    comm.succeed(*comm.barrier());
    const auto message = comm.receive((rank.rank + 1) % 3, 0, buffer<int32_t>(1));
    std::shared_ptr<Task> collective;
    if (rank.rank != 1) collective = comm.all_reduce(buffer<int32_t>(1000));
    rank.barrier();
    if (rank.rank == 1) comm.group().abort(Error(ErrorCode::kAborted, "stop it, rank 1", 1));
    for (const auto& task : {std::shared_ptr<Task>(message), collective}) {
      if (!task) continue;
      const Error error = comm.failure(*task);
      expect_error(error, ErrorCode::kAborted, 1);
      EXPECT_TRUE(contains(error, "stop it")) << error.what();
    }
    expect_error(comm.failure(*comm.barrier()), ErrorCode::kAborted, 1);
    other.succeed(*other.barrier());
  });
}

TEST(Timeout, OfACollectiveEndsTheGroupAndSaysWhoIsMissing) {
  run_ranks(3, [](Rank& rank) {
    Comm comm(rank.group());
    comm.succeed(*comm.barrier());
    if (rank.rank == 1) {
      const TimePoint give_up = Clock::now() + test::kPatience;
      while (!comm.group().error() && Clock::now() < give_up) {
        std::this_thread::sleep_for(milliseconds(5));
      }
      ASSERT_TRUE(comm.group().error());
      EXPECT_EQ(comm.group().error()->code(), ErrorCode::kTimeout);
    } else {
      const Error error = comm.failure(*comm.all_reduce(buffer<int32_t>(10), milliseconds(150)));
      EXPECT_EQ(error.code(), ErrorCode::kTimeout) << error.what();
      for (const char* part : {"Timed out after 150 ms", "all_reduce", "40 bytes", "rank 1"}) {
        EXPECT_TRUE(contains(error, part)) << part << " in " << error.what();
      }
    }
    EXPECT_EQ(comm.failure(*comm.barrier()).code(), ErrorCode::kTimeout);
    rank.barrier();
  });
}

TEST(Timeout, PassesWhileNobodyWaits) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    if (rank.rank == 0) {
      const auto task = comm.all_reduce(buffer<int32_t>(10), milliseconds(100));
      const TimePoint give_up = Clock::now() + test::kPatience;
      while (!task->done() && Clock::now() < give_up) {
        std::this_thread::sleep_for(milliseconds(5));
      }
      ASSERT_TRUE(task->done()) << "the engine's thread keeps the deadline";
      EXPECT_EQ(task->error()->code(), ErrorCode::kTimeout);
    }
    rank.barrier();
  });
}

TEST(Timeout, ZeroMeansNone) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    const auto data = buffer<int32_t>(1);
    if (rank.rank == 0) {
      const auto task = comm.receive(1, 0, data, milliseconds(0));
      EXPECT_FALSE(rank.runtime().wait(*task, Clock::now() + milliseconds(100)));
      rank.barrier();
      comm.succeed(*task);
    } else {
      rank.barrier();
      comm.succeed(*comm.send(0, 0, data));
    }
  });
}

}  // namespace
}  // namespace q7x2
