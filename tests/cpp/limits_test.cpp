// What is left of a rank when threads or memory run out: an error, which its peers see, and no
// more.
#include <pthread.h>

#include <csignal>
#include <future>
#include <thread>

#include <gtest/gtest.h>

#include "base/quiet_thread.h"
#include "comm.h"
#include "failing_allocation.h"
#include "ranks.h"
#include "scarce_threads.h"
#include "transport/quirks/process_limits.h"
#include "transport/run/notifier.h"

namespace q7x2 {
namespace {

using test::buffer;
using test::Comm;
using test::Rank;
using test::run_ranks;
using test::ScarceThreads;

constexpr int kNever = 1 << 30;

bool blocks(int signal) {
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  return sigismember(&mask, signal) == 1;
}

TEST(Limits, AThreadThatCannotStartLeavesSignalsAsTheyAre) {
  run_ranks(1, [](Rank&) {
    sigset_t usr2;
    sigemptyset(&usr2);
    sigaddset(&usr2, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &usr2, nullptr);
    {
      const ScarceThreads scarce;
      try {
        quiet_thread("q7x2-test", [] {}).join();
        FAIL() << "there are threads to be had";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kTransport);
        EXPECT_NE(std::string(error.what()).find("q7x2-test"), std::string::npos) << error.what();
        EXPECT_NE(std::string(error.what()).find("ulimit -u"), std::string::npos) << error.what();
      }
    }
    EXPECT_FALSE(blocks(SIGINT));
    EXPECT_TRUE(blocks(SIGUSR2));
    quiet_thread("q7x2-test", [] { EXPECT_TRUE(blocks(SIGINT)); }).join();
    EXPECT_FALSE(blocks(SIGINT));
  });
}

TEST(Limits, ANotifierNeedsOneThread) {
  run_ranks(1, [](Rank&) {
    Notifier refused;
    {
      const ScarceThreads scarce;
      EXPECT_THROW(refused.start(), Error);
    }
    Notifier notifier;
    notifier.start();
    const ScarceThreads scarce;
    std::promise<void> gate;
    int done = 0;
    notifier.post([&] {
      gate.get_future().wait();
      ++done;
    });
    for (int i = 0; i < 10; ++i) {
      notifier.post([&] { ++done; });
      std::this_thread::sleep_for(2 * Notifier::kPatience);
    }
    gate.set_value();
    notifier.stop();
    EXPECT_EQ(done, 11);
  });
}

TEST(Limits, AnEngineThatHasNoThreadsIsNotMade) {
  run_ranks(1, [](Rank& rank) {
    {
      const ScarceThreads scarce;
      EXPECT_THROW(check_process_limits(), Error);
      EXPECT_THROW(rank.runtime(), Error);
    }
    Comm comm(rank.group());  // nothing is left behind
    comm.succeed(*comm.barrier());
  });
}

/// Every allocation of rank 1's thread fails once, each in a group of its own: those of the
/// submission, or the first ones of the wait as well. A wait that lasts has more and more.
void fail_each_allocation(bool in_wait) {
  constexpr int kMost = 100;
  run_ranks(2,
            [in_wait](Rank& rank) {
              int failures = 0;
              bool over = false;
              for (int nth = 1; !over && nth <= kMost; ++nth) {
                Comm comm(rank.group(std::to_string(nth)));
                const auto data = buffer<int32_t>(100'000, 1);
                CollectiveCall call;
                call.collective = Collective::kAllReduce;
                call.input = call.output = {test::region(*data)};
                call.dtype = DType::kInt32;
                const auto task = comm.make(std::move(call), data);
                rank.barrier();
                test::fail_allocation(rank.rank == 1 ? nth : 0);
                rank.runtime().submit(task, /*caller_waits=*/true);
                if (!in_wait) test::fail_allocation(test::allocation_will_fail() ? kNever : 0);
                const TimePoint before = Clock::now();
                try {
                  comm.await(*task);
                } catch (const std::bad_alloc&) {
                  comm.await(*task);  // the call is not lost
                }
                const bool spared = test::allocation_will_fail();
                test::fail_allocation(0);
                EXPECT_LT(Clock::now() - before, test::kPatience / 2);
                const bool succeeded = !task->error();
                over = rank.rank == 0 ? rank.get(1, "over" + std::to_string(nth)) == "yes" : spared;
                if (rank.rank == 1) {
                  rank.put("over" + std::to_string(nth), over ? "yes" : "no");
                  EXPECT_TRUE(succeeded || !spared) << nth;
                  EXPECT_TRUE(in_wait || succeeded == spared) << nth;
                }
                if (const auto error = task->error()) {
                  ++failures;
                  EXPECT_EQ(error->rank(), 1) << error->what();
                  EXPECT_NE(std::string(error->what()).find("it could not allocate memory"),
                            std::string::npos)
                      << error->what();
                }
              }
              EXPECT_GT(failures, 0);
              Comm comm(rank.group("after"));
              comm.succeed(*comm.barrier());
            },
            {.deadline = std::chrono::seconds(120)});
}

TEST(Limits, AnAllocationThatFailsInSubmitFailsTheGroupAtOnce) {
  fail_each_allocation(/*in_wait=*/false);
}

TEST(Limits, AnAllocationThatFailsInWaitFailsTheGroupAtOnce) {
  fail_each_allocation(/*in_wait=*/true);
}

TEST(Limits, WithoutSharedMemoryToo) {
  ::setenv("UCX_TLS", "tcp", 1);
  fail_each_allocation(/*in_wait=*/true);
  ::unsetenv("UCX_TLS");
}

TEST(Limits, ACallOnAFailedGroupHasItsOwnNumber) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    // The first call of a kind takes two numbers, one for its announcement; see plan_call.h.
    comm.succeed(*comm.all_reduce(buffer<int32_t>(8)));
    comm.group().abort(Error(ErrorCode::kAborted, "a test ended it"));
    for (int number = 2; number < 5; ++number) {
      const std::string text = comm.failure(*comm.all_reduce(buffer<int32_t>(8))).what();
      EXPECT_NE(text.find("(sequence " + std::to_string(number) + ","), std::string::npos) << text;
      EXPECT_NE(text.find("the group has failed: a test ended it"), std::string::npos) << text;
    }
  });
}

/// Three ranks, of which the last one has other terms, make no group.
void expect_refusal(const GroupTerms& terms, const GroupTerms& other,
                    const std::vector<std::string>& texts) {
  run_ranks(3, [&](Rank& rank) {
    test::ScriptedBootstrap bootstrap(rank, [&](const std::string& what, const std::string& mine) {
      rank.put(what, mine);
      return std::vector{rank.get(0, what), rank.get(1, what), rank.get(2, what)};
    });
    try {
      make_group(rank.runtime(), rank.rank, 3, "g", bootstrap, rank.rank == 2 ? other : terms);
      FAIL() << "the ranks agree";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kMismatch);
      const std::string said = error.what();
      for (const std::string& text : texts) EXPECT_NE(said.find(text), std::string::npos) << said;
    }
    rank.barrier();
  });
}

TEST(Limits, RanksThatAreConfinedToDifferentAlgorithmsMakeNoGroup) {
  expect_refusal({.algorithms = "ring"}, {.algorithms = "sra"},
                 {"ranks 0 and 2", "'ring' and 'sra'", "Q7X2_ALGO"});
}

TEST(Limits, RanksThatAttachDifferentHooksMakeNoGroup) {
  expect_refusal({.attached_hook = "int8"}, {.attached_hook = ""},
                 {"ranks 0 and 2", "'int8' and ''", "Q7X2_ATTACH"});
}

}  // namespace
}  // namespace q7x2
