// How groups end: a rank that dies, a rank that leaves, an abort and a time-out.
#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "comm.h"
#include "ranks.h"

namespace q7x2 {
namespace {

using std::chrono::milliseconds;
using test::buffer;
using test::Comm;
using test::kLong;
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

/// Rank 0 sends before it hears of it. The memory is let go without closing the connection, which
/// another group uses. A process that does not get a processor for long may be taken for late, so
/// there are several attempts.
TEST(Leave, WhatIsOnItsWayToTheRankIsDropped) {
  run_ranks(2, [](Rank& rank) {
    bool has_survived = false;
    for (int i = 0; i < 5 && !has_survived; ++i) {
      const std::string number = std::to_string(i);
      Comm other(rank.group("other" + number));
      const auto group = rank.group("short" + number);
      Comm comm(group);
      const auto data = buffer<int32_t>(1'000'000);
      comm.succeed(*(rank.rank == 0 ? comm.send(1, 0, data) : comm.receive(0, 0, data)));
      if (rank.rank == 0) {
        const auto task = std::make_shared<MessageTask>(group, MessageTask::Direction::kSend, 1, 1,
                                                        test::region(*data).data,
                                                        test::region(*data).bytes, data, kLong);
        {
          Locked locked(rank.runtime().lock());
          rank.barrier();
          rank.barrier();
          rank.runtime().tasks().submit(locked, task);
        }
        rank.runtime().wake();
        expect_error(comm.failure(*task), ErrorCode::kPeerLeft, 1);
        rank.put("survived" + number, other.group().error() ? "no" : "yes");
      } else {
        rank.barrier();
        comm.group().leave();
        rank.barrier();
      }
      has_survived = rank.get(0, "survived" + number) == "yes";
      if (has_survived) other.succeed(*other.barrier());
    }
    EXPECT_TRUE(has_survived);
    rank.barrier();
  });
}

TEST(Leave, AfterWhatItHasBegunIsDone) {
  run_ranks(3, [](Rank& rank) {
    Comm comm(rank.group());
    const auto data = buffer<int32_t>(100'000, 1);
    if (rank.rank == 1) {
      const auto task = comm.all_reduce(data);
      rank.put("leaves", "");
      comm.group().runtime().finish_collectives(&comm.group());
      EXPECT_TRUE(task->done());
      comm.group().leave();
    } else {
      rank.get(1, "leaves");
      comm.succeed(*comm.all_reduce(data));
      EXPECT_EQ(data->back(), 3);
    }
    rank.barrier();
  });
}

TEST(Leave, DoesNotWaitForEverForWhatNobodyJoins) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    if (rank.rank == 1) {
      const auto task = comm.all_reduce(buffer<int32_t>(10));
      comm.group().runtime().finish_collectives(&comm.group());
      EXPECT_FALSE(task->done());
      comm.group().leave();
      EXPECT_EQ(comm.failure(*task).code(), ErrorCode::kAborted);
    }
    rank.barrier();
  });
}

// Each has begun what the other one never will. Neither stays for it.
TEST(Leave, WhatAMemberThatLeavesNeverBeginsIsNotMissed) {
  run_ranks(2, [](Rank& rank) {
    std::vector<Comm> comms;
    for (const char* name : {"a", "b"}) comms.emplace_back(rank.group(name));
    const int other = 1 - rank.rank;
    Comm& own = comms[static_cast<size_t>(rank.rank)];
    const auto collective = own.all_reduce(buffer<int32_t>(10));
    const auto message = own.send(other, 0, buffer<int32_t>(16 << 20));
    Runtime& runtime = rank.runtime();
    const auto is_missed = [&](Task& task) {
      Locked locked(runtime.lock());
      return Runtime::is_missed(locked, task);
    };
    EXPECT_TRUE(is_missed(*collective));
    EXPECT_TRUE(is_missed(*message));
    rank.barrier();
    runtime.groups().say_last_call(nullptr);
    while (is_missed(*collective) || is_missed(*message)) runtime.drive();
    rank.barrier();
  });
}

TEST(Leave, FailsWhatIsInProgressHere) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    if (rank.rank == 0) {
      const auto task = comm.receive(1, 0, buffer<int32_t>(1));
      EXPECT_EQ(rank.runtime().tasks_of(comm.group()).size(), 1U);
      comm.group().leave();
      EXPECT_EQ(comm.failure(*task).code(), ErrorCode::kAborted);
    }
    rank.barrier();
  });
}

// So many groups have come since that the flight recorder has forgotten it.
TEST(Leave, AMessageLongAfterItIsAnError) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group("first"));
    comm.group().leave();
    for (int i = 0; i < 40; ++i) Comm(rank.group(std::to_string(i))).group().leave();
    const auto data = buffer<int32_t>(1);
    EXPECT_EQ(comm.failure(*comm.send(1 - rank.rank, 0, data)).code(), ErrorCode::kAborted);
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
