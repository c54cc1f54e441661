// A group of three ranks with servers, for tests of offloaded calls.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "comm.h"
#include "executor/sparse/sparse_all_reduce.h"
#include "ledger/flight_record.h"
#include "ledger/name_table.h"
#include "ranks.h"
#include "servers/offloaded_call.h"
#include "servers/server_group.h"
#include "servers/slot_pool.h"

namespace q7x2::test {

inline constexpr int kRanks = 3;

/// A group of ranks, and its server group, whose other members are servers.
class ServerGroupJob {
 public:
  /// `racks`: number of racks, to which ranks and servers are assigned round robin.
  explicit ServerGroupJob(Rank& rank, double server_rate = 125e6, int racks = 1)
      : all_(rank.group("servers")), fabric_(fabric(all_->world_size(), server_rate, racks)) {
    if (is_server()) return;
    std::vector<int> ranks;
    for (int r = 0; r < kRanks; ++r) ranks.push_back(r);
    group_ = rank.group("ranks", ranks);
    comm_ = std::make_unique<Comm>(group_);
    servers_ = std::make_shared<ServerGroup>(
        all_, kRanks, std::make_shared<Planner>(all_->rank(), fabric_, ""), "a test");
    group_->accompany(all_);
    plans_ = std::make_shared<PlanCache>(
        std::make_shared<Planner>(group_->rank(),
                                  std::make_shared<Fabric>(Fabric::uniform(kRanks, 1, 12.5e6)), ""),
        group_->rank(), kRanks, "a test");
  }

  static std::shared_ptr<const Fabric> fabric(int members, double server_rate, int racks = 1) {
    auto made = std::make_shared<Fabric>(Fabric::uniform(kRanks, 1, 12.5e6));
    for (int member = kRanks; member < members; ++member) {
      made->servers.push_back(
          {.name = "s", .key = {}, .egress = server_rate, .ingress = server_rate});
    }
    made->racks.assign(static_cast<size_t>(racks), Fabric::Rack{});
    for (size_t i = 0; i < made->hosts.size(); ++i)
      made->hosts[i].rack = static_cast<int>(i) % racks;
    for (size_t i = 0; i < made->servers.size(); ++i) {
      made->servers[i].rack = static_cast<int>(i) % racks;
    }
    return made;
  }

  bool is_server() const { return all_->rank() >= kRanks; }
  const std::shared_ptr<Group>& all() { return all_; }
  ServerGroup& servers() { return *servers_; }
  Group& group() { return *group_; }
  Comm& comm() { return *comm_; }
  uint64_t serve(SlotPool pool = {}) {
    return follow_orders(all_, kRanks, fabric_, "a test",
                         std::make_shared<SlotPool>(std::move(pool)));
  }

  std::shared_ptr<CollectiveTask> start(const Buffer<float>& data, int root = -1,
                                        std::chrono::milliseconds timeout = kLong,
                                        const std::string& algorithm = "servers") {
    CollectiveCall call;
    call.collective = root < 0 ? Collective::kAllReduce : Collective::kReduce;
    call.root = root;
    call.input = call.output = {region(*data)};
    call.dtype = DType::kFloat32;
    call.algorithms = algorithm;
    EXPECT_TRUE(servers_->serves(call));
    const auto saved = std::make_shared<std::vector<float>>(*data);
    const auto memory = std::make_shared<std::pair<Buffer<float>, Buffer<float>>>(data, saved);
    const bool is_written = root < 0 || root == group_->rank();
    const auto served =
        servers_->attempt(call, is_written ? region(*saved) : Region{}, memory, timeout);
    const auto task = std::make_shared<OffloadedTask<CollectiveTask>>(
        served, plans_, group_, plan_call_alone(std::move(call), plans_, group_->rank(), kRanks),
        memory, timeout);
    group_->runtime().submit(served->task(), /*caller_waits=*/false);
    group_->runtime().submit(task, /*caller_waits=*/false);
    return task;
  }

  std::shared_ptr<SparseAllReduceTask> start_blocks(const Buffer<float>& data,
                                                    std::chrono::milliseconds timeout = kLong) {
    const auto bytes = std::as_writable_bytes(std::span(*data));
    EXPECT_TRUE(servers_->serves_blocks(bytes.size()));
    const auto rows = std::make_shared<BlockRows>(bytes, kRanks);
    SparseCall call{.layout = rows->layout(),
                    .rows = rows,
                    .ranks = kRanks,
                    .dtype = DType::kFloat32,
                    .agreed = bytes.size(),
                    .bytes = bytes.size(),
                    .title = kTitleOfBlocks,
                    .plan = kBlocksOfRanks};
    const auto served = servers_->attempt_blocks(call, bytes, data, timeout);
    const auto task = std::make_shared<OffloadedTask<SparseAllReduceTask>>(
        served, plans_, group_, std::move(call), data, timeout);
    group_->runtime().submit(served->task(), /*caller_waits=*/false);
    group_->runtime().submit(task, /*caller_waits=*/false);
    return task;
  }

 private:
  const std::shared_ptr<Group> all_;
  const std::shared_ptr<const Fabric> fabric_;
  std::shared_ptr<Group> group_;
  std::unique_ptr<Comm> comm_;
  std::shared_ptr<ServerGroup> servers_;
  std::shared_ptr<PlanCache> plans_;
};

/// Of a call that is done: by what it was made, as the flight recorder has it.
inline std::string algorithm_of(const Task& call) {
  FlightRecord record;
  NameTable names;
  call.report(record, names);
  return std::string(names.name_of(record.plan));
}

/// Numbers whose sum is exact in any order.
inline Buffer<float> numbers(int rank, size_t count) {
  auto data = buffer<float>(count);
  for (size_t i = 0; i < count; ++i) {
    (*data)[i] = static_cast<float>(rank + 1) * static_cast<float>(i % 1009);
  }
  return data;
}

inline void expect_sums(const std::vector<float>& data) {
  for (size_t i = 0; i < data.size(); ++i) {
    ASSERT_EQ(data[i], 6 * static_cast<float>(i % 1009)) << "element " << i;
  }
}

}  // namespace q7x2::test
