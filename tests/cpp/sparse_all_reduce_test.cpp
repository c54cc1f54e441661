// The streaming all-reduce of rows between real processes: against a naive sum in rank order, bit
// by bit, and its failures.
#include "executor/sparse/sparse_all_reduce.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "comm.h"
#include "level.h"
#include "ranks.h"

namespace q7x2 {
namespace {

using test::buffer;
using test::Buffer;
using test::Comm;
using test::kLong;
using test::Rank;
using test::run_ranks;

constexpr size_t kInBlock = BlockRows::kBytes / sizeof(float);

/// What `rank` has: of its blocks, so many in a hundred are not zero.
std::vector<float> numbers(int rank, size_t count, int percent) {
  std::mt19937 random(static_cast<unsigned>(rank) + 7);
  std::vector<float> values(count);
  for (size_t begin = 0; begin < count; begin += kInBlock) {
    const bool is_there = static_cast<int>(random() % 100) < percent;
    for (size_t i = begin; i < std::min(begin + kInBlock, count); ++i) {
      const auto value = static_cast<float>(random() % 1000) / 7.0F - 70.0F;
      if (is_there) values[i] = i % 5 == 0 ? -0.0F : value;
    }
  }
  return values;
}

std::vector<float> sums(int ranks, size_t count, int percent) {
  std::vector<float> total = numbers(0, count, percent);
  for (int rank = 1; rank < ranks; ++rank) {
    const std::vector<float> its = numbers(rank, count, percent);
    for (size_t i = 0; i < count; ++i) total[i] += its[i];
  }
  return total;
}

/// A group, and its calls.
struct Ranks : Comm {
  explicit Ranks(std::shared_ptr<Group> group) : Comm(group), pointer(std::move(group)) {}
  const std::shared_ptr<Group> pointer;
};

std::shared_ptr<SparseAllReduceTask> start_blocks(Ranks& comm, const Buffer<float>& data,
                                                  std::chrono::milliseconds timeout = kLong) {
  const auto bytes = std::as_writable_bytes(std::span(*data));
  const auto rows = std::make_shared<BlockRows>(bytes, comm.size());
  SparseCall call{.layout = rows->layout(),
                  .rows = rows,
                  .ranks = comm.size(),
                  .dtype = DType::kFloat32,
                  .agreed = bytes.size(),
                  .bytes = bytes.size(),
                  .title = "all_reduce of blocks",
                  .plan = "blocks"};
  auto task = std::make_shared<SparseAllReduceTask>(comm.pointer, std::move(call), data, timeout);
  comm.group().runtime().submit(task, /*caller_waits=*/false);
  return task;
}

void expect_same_bits(const std::vector<float>& got, const std::vector<float>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  EXPECT_TRUE(got.empty() ||
              std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)) == 0);
}

TEST(SparseAllReduce, BlocksGiveTheSumInRankOrderAtEveryDensity) {
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [](Rank& rank) {
      Ranks comm(rank.group());
      for (const size_t count :
           {size_t{0}, size_t{1}, kInBlock + 3, test::at_level<size_t>(200'003, 1'000'003)}) {
        for (const int percent : {0, 3, 40, 100}) {
          rank.at(std::to_string(count) + " numbers, " + std::to_string(percent) + " percent");
          const auto data = buffer<float>(0);
          *data = numbers(rank.rank, count, percent);
          comm.succeed(*start_blocks(comm, data));
          expect_same_bits(*data, sums(rank.world_size, count, percent));
        }
      }
    });
  }
}

// Dense at first, sparse later, and dense on one rank only: the switch to sending all blocks, and
// back.
TEST(SparseAllReduce, DensityMayChangeWithinATensor) {
  run_ranks(2, [](Rank& rank) {
    Ranks comm(rank.group());
    constexpr size_t kCount = size_t{3} << 20;
    const auto mine = [&](int of) {
      std::vector<float> values = numbers(of, kCount, 100);
      for (size_t i = kCount / 3; i < kCount; ++i) {
        if (i < 2 * kCount / 3 || of == 0) values[i] = 0;
      }
      return values;
    };
    const auto data = buffer<float>(0);
    *data = mine(rank.rank);
    comm.succeed(*start_blocks(comm, data));
    std::vector<float> expected = mine(0);
    const std::vector<float> other = mine(1);
    for (size_t i = 0; i < kCount; ++i) expected[i] += other[i];
    expect_same_bits(*data, expected);
  });
}

TEST(SparseAllReduce, SendsFewBytesIfFewBlocksAreNotZero) {
  run_ranks(2, [](Rank& rank) {
    Ranks comm(rank.group());
    const auto data = buffer<float>(size_t{4} << 20);
    (*data)[12345] = 1;
    const auto task = start_blocks(comm, data);
    comm.succeed(*task);
    EXPECT_EQ((*data)[12345], 2);
    Locked locked(rank.runtime().lock());
    EXPECT_LT(task->record(locked).traffic.sent_network, 8 * BlockRows::kBytes);
  });
}

TEST(SparseAllReduce, ListedRowsGiveTheSumAndTheRowsThatAnyRankHas) {
  run_ranks(3, [](Rank& rank) {
    Ranks comm(rank.group());
    constexpr uint64_t kRows = 5'000;
    constexpr size_t kDim = 3;
    for (const int percent : {0, 1, 30, 100}) {
      std::vector<std::vector<int64_t>> rows(3);
      std::vector<double> expected(kRows * kDim);
      std::vector<int64_t> expected_rows;
      std::vector<bool> is_there(kRows);
      for (int of = 0; of < 3; ++of) {
        std::mt19937 random(static_cast<unsigned>(of * 100 + percent));
        for (uint64_t row = 0; row < kRows; ++row) {
          if (static_cast<int>(random() % 100) >= percent) continue;
          rows[static_cast<size_t>(of)].push_back(static_cast<int64_t>(row));
          is_there[row] = true;
          for (size_t i = 0; i < kDim; ++i)
            expected[row * kDim + i] += of + 0.1 * static_cast<double>(row + i);
        }
      }
      for (uint64_t row = 0; row < kRows; ++row) {
        if (is_there[row]) expected_rows.push_back(static_cast<int64_t>(row));
      }
      const std::vector<int64_t>& mine = rows[static_cast<size_t>(rank.rank)];
      std::vector<double> values;
      for (const int64_t row : mine) {
        for (size_t i = 0; i < kDim; ++i)
          values.push_back(rank.rank + 0.1 * static_cast<double>(static_cast<size_t>(row) + i));
      }
      const auto given = std::make_shared<ListedRows>(
          mine, reinterpret_cast<const std::byte*>(values.data()), kDim * sizeof(double), kRows, 3);
      SparseCall call{.layout = given->layout(),
                      .rows = given,
                      .ranks = 3,
                      .dtype = DType::kFloat64,
                      .title = "all_reduce of rows",
                      .plan = "sparse_rows"};
      const auto task =
          std::make_shared<SparseAllReduceTask>(comm.pointer, std::move(call), nullptr, kLong);
      comm.group().runtime().submit(task, /*caller_waits=*/false);
      comm.succeed(*task);
      ASSERT_EQ(given->result_rows(), expected_rows.size());
      std::vector<int64_t> got_rows(expected_rows.size());
      std::vector<double> got(expected_rows.size() * kDim);
      given->collect(got_rows.data(), reinterpret_cast<std::byte*>(got.data()));
      EXPECT_EQ(got_rows, expected_rows);
      for (size_t k = 0; k < got_rows.size(); ++k) {
        for (size_t i = 0; i < kDim; ++i) {
          EXPECT_EQ(got[k * kDim + i], expected[static_cast<size_t>(got_rows[k]) * kDim + i]);
        }
      }
    }
  });
}

TEST(SparseAllReduce, ManyAtOnceBesideDenseOnes) {
  run_ranks(3, [](Rank& rank) {
    Ranks comm(rank.group());
    std::vector<Buffer<float>> blocks;
    std::vector<Buffer<int32_t>> dense;
    std::vector<std::shared_ptr<Task>> tasks;
    for (int i = 0; i < 80; ++i) {
      blocks.push_back(buffer<float>(0));
      *blocks.back() = numbers(rank.rank, 20'000, 20);
      tasks.push_back(start_blocks(comm, blocks.back()));
      dense.push_back(buffer<int32_t>(5'000, rank.rank));
      tasks.push_back(comm.all_reduce(dense.back()));
    }
    for (const auto& task : tasks) comm.succeed(*task);
    for (const auto& each : blocks) expect_same_bits(*each, sums(3, 20'000, 20));
    for (const auto& each : dense) EXPECT_EQ((*each)[4'999], 3);
  });
}

TEST(SparseAllReduce, RanksThatDisagreeGetAnErrorWithBothCalls) {
  run_ranks(2, [](Rank& rank) {
    Ranks comm(rank.group());
    const auto data = buffer<float>(rank.rank == 0 ? 100'000 : 90'000, 1.0F);
    const Error error = comm.failure(*start_blocks(comm, data));
    EXPECT_EQ(error.code(), ErrorCode::kMismatch) << error.what();
    EXPECT_NE(std::string(error.what()).find("400000 bytes"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("360000 bytes"), std::string::npos) << error.what();
  });
}

TEST(SparseAllReduce, BlocksHereAndADenseCallThereGetAnError) {
  run_ranks(2, [](Rank& rank) {
    Ranks comm(rank.group());
    const auto data = buffer<float>(100'000, 1.0F);
    if (rank.rank == 0) {
      EXPECT_EQ(comm.failure(*start_blocks(comm, data)).code(), ErrorCode::kMismatch);
    } else {
      const auto task = comm.flat(Collective::kAllReduce, data, DType::kFloat32);
      EXPECT_EQ(comm.failure(*task).code(), ErrorCode::kMismatch);
    }
  });
}

TEST(SparseAllReduce, ARankThatDiesIsNamed) {
  run_ranks(3,
            [](Rank& rank) {
              Ranks comm(rank.group());
              const auto data = buffer<float>(size_t{1} << 20, 1.0F);
              comm.succeed(*start_blocks(comm, data));
              rank.barrier();  // rank 2 is done first, and would be missed in this call already
              if (rank.rank == 2) {
                start_blocks(comm, data);
                ::kill(::getpid(), SIGKILL);
              }
              const Error error = comm.failure(*start_blocks(comm, buffer<float>(64 << 20, 1.0F)));
              EXPECT_EQ(error.code(), ErrorCode::kPeerFailed) << error.what();
              EXPECT_EQ(error.rank(), 2) << error.what();
            },
            {.killed = {2}});
}

TEST(SparseAllReduce, ADeadlineNamesWhoIsLate) {
  run_ranks(2, [](Rank& rank) {
    Ranks comm(rank.group());
    const auto data = buffer<float>(100'000, 1.0F);
    if (rank.rank == 0) {
      const Error error = comm.failure(*start_blocks(comm, data, std::chrono::milliseconds(300)));
      EXPECT_EQ(error.code(), ErrorCode::kTimeout) << error.what();
      EXPECT_EQ(error.rank(), 1) << error.what();
    }
    rank.barrier();
  });
}

}  // namespace
}  // namespace q7x2
