// Members without a rank add up what ranks send, between real processes: the bits of a sum in rank
// order, and what remains when such a member dies.
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "comm.h"
#include "ranks.h"

namespace q7x2 {
namespace {

using test::Buffer;
using test::buffer;
using test::Comm;
using test::Rank;
using test::run_ranks;

/// One member's end of calls that servers serve: the first members are ranks, the others servers.
class Served {
 public:
  Served(std::shared_ptr<Group> group, int ranks) : group_(std::move(group)), ranks_(ranks) {
    auto fabric = std::make_shared<Fabric>(Fabric::uniform(ranks, 1, 12.5e6));
    for (int member = ranks; member < group_->world_size(); ++member) {
      fabric->servers.push_back({.name = "s", .key = {}, .egress = 125e6, .ingress = 125e6});
    }
    plans_ = std::make_shared<PlanCache>(std::make_shared<Planner>(group_->rank(), fabric, ""),
                                         group_->rank(), group_->world_size(), "a test");
  }

  bool is_server() const { return group_->rank() >= ranks_; }

  /// `data`: of a rank; a server has none, and says how many bytes there are.
  std::shared_ptr<CollectiveTask> all_reduce(Region data, std::shared_ptr<void> keep_alive,
                                             int divisor = 1) {
    CollectiveCall call;
    call.collective = Collective::kAllReduce;
    call.input = call.output = {data};
    call.dtype = DType::kFloat32;
    call.divisor = divisor;
    call.algorithms = "servers";
    const auto task =
        CollectiveTask::make(group_, plan_call(std::move(call), plans_, group_->rank(), ranks_),
                             std::move(keep_alive), test::kLong);
    group_->runtime().submit(task, /*caller_waits=*/false);
    return task;
  }

 private:
  const std::shared_ptr<Group> group_;
  const int ranks_;
  std::shared_ptr<PlanCache> plans_;
};

/// Numbers whose sum depends on the order of the summands.
float number(int rank, size_t index) {
  const float magnitude = rank % 2 == 0 ? 1e7F : 0.3F;
  return magnitude * (1 + static_cast<float>(index % 101)) * (rank == 2 ? -1.F : 1.F);
}

Buffer<float> numbers(int rank, size_t count) {
  auto data = buffer<float>(count);
  for (size_t i = 0; i < count; ++i) (*data)[i] = number(rank, i);
  return data;
}

void expect_sums_in_rank_order(const std::vector<float>& data, int ranks, int divisor) {
  for (size_t i = 0; i < data.size(); ++i) {
    float sum = number(0, i);
    for (int rank = 1; rank < ranks; ++rank) sum += number(rank, i);
    sum /= static_cast<float>(divisor);
    ASSERT_EQ(std::memcmp(&data[i], &sum, sizeof(sum)), 0)
        << "element " << i << ": " << data[i] << ", expected " << sum;
  }
}

/// (ranks, servers, members a host).
class OffloadedAllReduce : public testing::TestWithParam<std::tuple<int, int, int>> {};

TEST_P(OffloadedAllReduce, HasTheBitsOfASumInRankOrder) {
  const auto [ranks, servers, per_host] = GetParam();
  run_ranks(ranks + servers, [ranks = ranks, per_host = per_host](Rank& rank) {
    setenv("Q7X2_HOST_ID", std::to_string(rank.rank / per_host).c_str(), 1);
    const auto group = rank.group();
    Comm comm(group);
    Served served(group, ranks);
    for (const size_t count : {1, 5, 1021, 20'483, 300'007}) {
      for (const int divisor : {1, ranks}) {
        rank.at(std::to_string(count) + " elements");
        if (served.is_server()) {
          comm.succeed(*served.all_reduce({nullptr, count * sizeof(float)}, nullptr, divisor));
          continue;
        }
        const auto data = numbers(rank.rank, count);
        const auto task = served.all_reduce(test::region(*data), data, divisor);
        comm.succeed(*task);
        EXPECT_EQ(task->algorithm().substr(0, 8), "servers:");
        expect_sums_in_rank_order(*data, ranks, divisor);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Members, OffloadedAllReduce,
                         testing::Values(std::tuple(2, 1, 1), std::tuple(3, 2, 1),
                                         std::tuple(4, 2, 8), std::tuple(3, 2, 3)));

// Each rank's call fails or is right, and the group of the ranks alone goes on.
TEST(OffloadedAllReduceFailure, OfAServerLeavesTheRanks) {
  constexpr int kRanks = 3;
  run_ranks(kRanks + 1,
            [](Rank& rank) {
              setenv("Q7X2_HOST_ID", std::to_string(rank.rank).c_str(), 1);
              const auto all = rank.group("all");
              Comm comm(all);
              Served served(all, kRanks);
              constexpr size_t kCount = 1 << 20;
              if (served.is_server()) {
                comm.succeed(*served.all_reduce({nullptr, kCount * sizeof(float)}, nullptr));
                served.all_reduce({nullptr, kCount * sizeof(float)}, nullptr);
                raise(SIGKILL);
              }
              const auto alone = rank.group("alone", {0, 1, 2});
              for (int call = 0; call < 3; ++call) {
                const auto data = numbers(rank.rank, kCount);
                const auto task = served.all_reduce(test::region(*data), data);
                comm.await(*task);
                if (!task->error()) expect_sums_in_rank_order(*data, kRanks, 1);
                // In the second call the server dies: it may be right on some ranks.
                if (call != 1) {
                  EXPECT_EQ(task->error().has_value(), call == 2) << "call " << call;
                }
              }
              Comm remaining(alone);
              const auto data = buffer<int32_t>(1000, rank.rank);
              remaining.succeed(*remaining.all_reduce(data));
              EXPECT_EQ((*data)[999], 3);
            },
            {.killed = {kRanks}});
}

}  // namespace
}  // namespace q7x2
