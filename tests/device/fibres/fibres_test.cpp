// The stand-in itself: right kernels give the right results in each order of threads, and wrong
// ones are reported in each order.
#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fibres/grid.h"
#include "orders.h"
#include "test_kernels.h"

namespace q7x2::fibres::test {
namespace {

std::vector<int> numbers(int count) {
  std::vector<int> all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

/// Runs `kernel`, which must be reported with these words in each order of threads.
template <class Kernel>
void expect_error(Kernel kernel, const std::string& words) {
  in_all_orders([&] {
    try {
      kernel();
      ADD_FAILURE() << "nothing was reported; expected: " << words;
    } catch (const KernelError& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  });
}

/// The same of races, which ThreadSanitizer reports by ending the process.
template <class Kernel>
void expect_barrier_missed(Kernel kernel, const std::string& words) {
  if (race_finder() == RaceFinder::kAccesses) return expect_error(kernel, words);
  if (race_finder() == RaceFinder::kNone) GTEST_SKIP() << "another sanitizer is at work";
  const auto run = [&] {
    kernel();
    std::exit(0);
  };
  in_all_orders([&] { EXPECT_EXIT(run(), testing::ExitedWithCode(66), "data race"); });
}

/// The same of what only Accesses knows.
template <class Kernel>
void expect_race(Kernel kernel, const std::string& words) {
  if (race_finder() != RaceFinder::kAccesses) GTEST_SKIP() << "another sanitizer is at work";
  expect_error(kernel, words);
}

TEST(Fibres, SharedMemoryAndBarriers) {
  in_all_orders([] {
    for (const unsigned threads : {1u, 32u, 100u, 1024u}) {
      const std::vector<int> in = numbers(static_cast<int>(threads) * 3);
      std::vector<int> expected = in;
      for (size_t block = 0; block < 3; ++block) {
        const auto begin = expected.begin() + static_cast<ptrdiff_t>(block * threads);
        std::reverse(begin, begin + threads);
      }
      EXPECT_EQ(reverse_blocks(in, threads, true), expected);
    }
    EXPECT_EQ(sum_of_block(numbers(256), true), 255 * 256 / 2);
  });
}

TEST(Fibres, AtomicsAndDynamicSharedMemory) {
  std::vector<unsigned> values(640);
  std::vector<unsigned> expected(16);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<unsigned>(i * i / 7 % 16);
    ++expected[values[i]];
  }
  in_all_orders([&] { EXPECT_EQ(histogram(values, true), expected); });
}

TEST(Fibres, OperationsOfWarps) {
  in_all_orders([] {
    const WarpResults results = warp_operations();
    for (int lane = 0; lane < 32; ++lane) {
      const auto i = static_cast<size_t>(lane);
      EXPECT_EQ(results.from_next[i], lane / 8 * 8 + (lane + 1) % 8);
      EXPECT_EQ(results.from_xor[i], lane ^ 5);
      EXPECT_EQ(results.from_above[i], lane % 16 < 3 ? lane : lane - 3);
      EXPECT_EQ(results.from_below[i], lane % 16 > 12 ? lane : lane + 3);
      EXPECT_EQ(results.wide[i], 7.5);
      EXPECT_EQ(results.ballot[i], 0xAAAAAAAAu);
      EXPECT_EQ(results.most[i], -9);
      EXPECT_EQ(results.total[i], 31u * 32 / 2);
      EXPECT_EQ(results.half_least[i], lane < 16 ? 1 : 17);
    }
    std::vector<int> expected = numbers(32);
    std::rotate(expected.begin(), expected.begin() + 1, expected.end());
    EXPECT_EQ(rotate_warp(true), expected);
  });
}

TEST(Fibres, ThreadsRunInTheOrderAskedFor) {
  const std::vector<unsigned> forward = [] {
    std::vector<unsigned> all(64);
    std::iota(all.begin(), all.end(), 0);
    return all;
  }();
  const auto order_with = [](Order order) {
    const WithOrder with_order(order);
    return order_of_threads(64);
  };
  EXPECT_EQ(order_with({}), forward);
  EXPECT_EQ(order_with({Order::Kind::kBackward}),
            std::vector<unsigned>(forward.rbegin(), forward.rend()));
  const std::vector<unsigned> first = order_with({Order::Kind::kRandom, 1});
  EXPECT_TRUE(std::is_permutation(first.begin(), first.end(), forward.begin()));
  EXPECT_NE(first, forward);
  EXPECT_EQ(order_with({Order::Kind::kRandom, 1}), first);
  EXPECT_NE(order_with({Order::Kind::kRandom, 2}), first);
}

TEST(Fibres, ReportARemovedBlockBarrier) {
  expect_barrier_missed([] { reverse_blocks(numbers(128), 64, false); }, "shared memory");
  expect_barrier_missed([] { sum_of_block(numbers(64), false); }, "without a barrier between them");
}

TEST(Fibres, ReportARemovedWarpBarrier) {
  expect_barrier_missed([] { rotate_warp(false); }, "shared memory");
  expect_barrier_missed([] { swap_warps(); }, "shared memory");
}

TEST(Fibres, ReportAdditionsThatAreNotAtomic) {
  const std::vector<unsigned> values(64, 3);
  expect_race([&] { histogram(values, false); }, "without a barrier between them");
}

TEST(Fibres, ReportBlocksThatWriteTheSameWord) {
  expect_race(blocks_write_one_word, "another block");
}

TEST(Fibres, ReportSharedMemoryThatTheBlockHasNotWritten) {
  expect_race(unwritten_shared, "that no thread of its block has written");
}

TEST(Fibres, ReportLocalMemoryOfAnotherThread) {
  expect_race(local_memory_of_another, "local memory of thread 0");
}

TEST(Fibres, ReportBarriersThatNotAllReach) {
  expect_error(barrier_in_one_branch, "threads wait for each other");
  expect_error(two_barriers, "threads wait for each other");
}

TEST(Fibres, ReportMasksThatAreWrong) {
  expect_error(lane_that_does_not_come, "names lane 5, which does not run");
  expect_error(mask_without_itself, "leaves out its own lane");
}

TEST(Fibres, ReportAKernelThatStartsAKernel) {
  expect_error(launch_in_kernel, "a kernel was started within a kernel");
}

TEST(Fibres, RunAfterAKernelThatFailed) {
  EXPECT_THROW(two_barriers(), KernelError);
  EXPECT_EQ(sum_of_block(numbers(64), true), 63 * 64 / 2);
}

}  // namespace
}  // namespace q7x2::fibres::test
