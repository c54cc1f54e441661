// Calls that servers attempt, between real processes: they are right whether servers serve them,
// leave or die.
#include "executor/annex.h"

#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "comm.h"
#include "executor/served_call.h"
#include "executor/slot_pool.h"
#include "ranks.h"

namespace q7x2 {
namespace {

using test::Buffer;
using test::buffer;
using test::Comm;
using test::Rank;
using test::run_ranks;

constexpr int kRanks = 3;

/// A group of ranks, and its annex, whose other members are servers.
class Job {
 public:
  /// `racks`: ranks and servers are in so many, in turns.
  explicit Job(Rank& rank, double server_rate = 125e6, int racks = 1)
      : all_(rank.group("annex")), fabric_(fabric(all_->world_size(), server_rate, racks)) {
    if (is_server()) return;
    std::vector<int> ranks;
    for (int r = 0; r < kRanks; ++r) ranks.push_back(r);
    group_ = rank.group("ranks", ranks);
    comm_ = std::make_unique<Comm>(group_);
    annex_ = std::make_shared<Annex>(
        all_, kRanks, std::make_shared<Planner>(all_->rank(), fabric_, ""), "a test");
    group_->accompany(all_);
    book_ = std::make_shared<PlanBook>(
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
  Annex& annex() { return *annex_; }
  Group& group() { return *group_; }
  Comm& comm() { return *comm_; }
  uint64_t serve(SlotPool pool = {}) {
    return follow_orders(all_, kRanks, fabric_, "a test", pool);
  }

  std::shared_ptr<CollectiveTask> start(const Buffer<float>& data, int root = -1,
                                        std::chrono::milliseconds timeout = test::kLong,
                                        const std::string& algorithm = "servers") {
    CollectiveCall call;
    call.collective = root < 0 ? Collective::kAllReduce : Collective::kReduce;
    call.root = root;
    call.input = call.output = {test::region(*data)};
    call.dtype = DType::kFloat32;
    call.algorithms = algorithm;
    EXPECT_TRUE(annex_->serves(call));
    const auto saved = std::make_shared<std::vector<float>>(*data);
    const auto memory = std::make_shared<std::pair<Buffer<float>, Buffer<float>>>(data, saved);
    auto served = std::make_shared<ServedCall>();
    served->annex = annex_;
    served->attempt = annex_->attempt(call, memory, timeout);
    if (root < 0 || root == group_->rank()) served->saved = test::region(*saved);
    const auto task = CollectiveTask::make(
                          group_, plan_call_alone(std::move(call), book_, group_->rank(), kRanks),
                          memory, timeout)
                          .back();
    task->set_served(served);
    group_->runtime().submit(served->attempt, /*caller_waits=*/false);
    group_->runtime().submit(task, /*caller_waits=*/false);
    return task;
  }

 private:
  const std::shared_ptr<Group> all_;
  const std::shared_ptr<const Fabric> fabric_;
  std::shared_ptr<Group> group_;
  std::unique_ptr<Comm> comm_;
  std::shared_ptr<Annex> annex_;
  std::shared_ptr<PlanBook> book_;
};

/// As `q7x2 serve` does (python/q7x2/serve.py).
void without_shared_memory() {
  setenv("UCX_TLS", "^sm", 1);
}

/// Numbers whose sum is exact in any order.
Buffer<float> numbers(int rank, size_t count) {
  auto data = buffer<float>(count);
  for (size_t i = 0; i < count; ++i) {
    (*data)[i] = static_cast<float>(rank + 1) * static_cast<float>(i % 1009);
  }
  return data;
}

void expect_sums(const std::vector<float>& data) {
  for (size_t i = 0; i < data.size(); ++i) {
    ASSERT_EQ(data[i], 6 * static_cast<float>(i % 1009)) << "element " << i;
  }
}

TEST(Annex, CallsAreServed) {
  run_ranks(kRanks + 2, [](Rank& rank) {
    setenv("Q7X2_HOST_ID", std::to_string(rank.rank).c_str(), 1);
    Job job(rank, 25e6);  // one server alone is slower than three ranks
    if (job.is_server()) {
      job.serve();
      return;
    }
    for (const size_t count : {1, 1000, 300'007}) {
      const auto data = numbers(rank.rank, count);
      const auto task = job.start(data);
      job.comm().succeed(*task);
      expect_sums(*data);
      EXPECT_TRUE(task->algorithm().starts_with("servers:"));
      if (count > 100'000) {
        EXPECT_EQ(task->algorithm(), "servers:2");
      }
    }
    std::vector<std::pair<Buffer<float>, std::shared_ptr<CollectiveTask>>> calls;
    for (int i = 0; i < 100; ++i) {  // more than run at once
      const auto data = numbers(rank.rank, 5000);
      calls.emplace_back(data, job.start(data));
    }
    for (const auto& [data, task] : calls) {
      job.comm().succeed(*task);
      expect_sums(*data);
    }
    for (int root = 0; root < kRanks; ++root) {
      const auto data = numbers(rank.rank, 5000);
      job.comm().succeed(*job.start(data, root));
      if (rank.rank == root) {
        expect_sums(*data);
      } else {
        EXPECT_EQ(*data, *numbers(rank.rank, 5000));
      }
    }
    EXPECT_EQ(job.annex().served(), 103U + kRanks);
    job.annex().group().leave();
  });
}

TEST(Annex, ServersOfTwoRacksAddUpInTwoLevels) {
  run_ranks(kRanks + 4, [](Rank& rank) {
    setenv("Q7X2_HOST_ID", std::to_string(rank.rank).c_str(), 1);
    Job job(rank, 125e6, /*racks=*/2);
    if (job.is_server()) {
      job.serve();
      return;
    }
    for (const auto* const algorithm : {"rack_servers:1", "rack_servers:2", "rack_servers"}) {
      for (const size_t count : {1, 1000, 300'007}) {
        const auto data = numbers(rank.rank, count);
        const auto task = job.start(data, -1, test::kLong, algorithm);
        job.comm().succeed(*task);
        expect_sums(*data);
        EXPECT_TRUE(task->algorithm().starts_with(algorithm)) << task->algorithm();
      }
    }
    for (int root = 0; root < kRanks; ++root) {
      const auto data = numbers(rank.rank, 5000);
      job.comm().succeed(*job.start(data, root, test::kLong, "rack_servers:2"));
      if (rank.rank == root) {
        expect_sums(*data);
      } else {
        EXPECT_EQ(*data, *numbers(rank.rank, 5000));
      }
    }
    EXPECT_EQ(job.annex().records().size(), 9U + kRanks);
    job.annex().group().leave();
  });
}

/// A pool of `bytes` for this process alone.
SlotPool pool_of(uint64_t bytes) {
  const int fd = memfd_create("slots", MFD_CLOEXEC);
  EXPECT_EQ(ftruncate(fd, sizeof(uint64_t)), 0);
  SlotPool pool(fd, 0, bytes);
  close(fd);
  return pool;
}

TEST(Annex, CallsWithoutSlotsAreMadeByTheRanks) {
  run_ranks(kRanks + 2, [](Rank& rank) {
    setenv("Q7X2_HOST_ID", std::to_string(rank.rank).c_str(), 1);
    Job job(rank, 25e6);
    if (job.is_server()) {
      // The second server has room for short calls only.
      const bool is_second = rank.rank == kRanks + 1;
      EXPECT_EQ(job.serve(is_second ? pool_of(50'000) : SlotPool()), is_second ? 10U : 0U);
      return;
    }
    for (int i = 0; i < 10; ++i) {
      for (const size_t count : {1'000, 300'007}) {
        const auto data = numbers(rank.rank, count);
        job.comm().succeed(*job.start(data, -1, test::kLong, "servers:2"));
        expect_sums(*data);
      }
    }
    EXPECT_EQ(job.annex().served(), 10U);
    EXPECT_EQ(job.annex().declined(), 10U);
    for (int root = 0; root < kRanks; ++root) {
      const auto data = numbers(rank.rank, 300'007);
      job.comm().succeed(*job.start(data, root, test::kLong, "servers:1"));
      if (rank.rank == root) {
        expect_sums(*data);
      } else {
        EXPECT_EQ(*data, *numbers(rank.rank, 300'007));
      }
    }
    EXPECT_EQ(job.annex().served(), 10U + kRanks);
    job.annex().group().leave();
  });
}

TEST(Annex, FewSlotsAreEnough) {
  run_ranks(kRanks + 1, [](Rank& rank) {
    setenv("Q7X2_HOST_ID", std::to_string(rank.rank).c_str(), 1);
    Job job(rank);
    constexpr size_t kCount = 2'000'003;
    if (job.is_server()) {
      // 16 slots would be the whole buffers of all ranks, or more.
      job.serve(pool_of(kRanks * kCount * sizeof(float) / 2));
      return;
    }
    for (int i = 0; i < 5; ++i) {
      const auto data = numbers(rank.rank, kCount);
      job.comm().succeed(*job.start(data));
      expect_sums(*data);
    }
    EXPECT_EQ(job.annex().served(), 5U);
    EXPECT_EQ(job.annex().declined(), 0U);
    job.annex().group().leave();
  });
}

TEST(Annex, ServersFollowAnotherFabric) {
  run_ranks(kRanks + 2, [](Rank& rank) {
    setenv("Q7X2_HOST_ID", std::to_string(rank.rank).c_str(), 1);
    Job job(rank);
    if (job.is_server()) {
      job.serve();
      return;
    }
    for (const double rate : {1e9, 2e9}) {
      auto fabric = std::make_shared<Fabric>(*Job::fabric(kRanks + 2, rate));
      fabric->servers[1].egress = fabric->servers[1].ingress = 125e6;  // other shares of the data
      job.annex().set_fabric(std::move(fabric));
      const auto data = numbers(rank.rank, 100'000);
      job.comm().succeed(*job.start(data));
      expect_sums(*data);
    }
    EXPECT_EQ(job.annex().served(), 2U);
    EXPECT_THROW(job.annex().set_fabric(Job::fabric(kRanks + 1, 1e9)), Error);
    job.annex().group().leave();
  });
}

TEST(Annex, AServerThatLeavesCostsNoResult) {
  run_ranks(kRanks + 1, [](Rank& rank) {
    setenv("Q7X2_HOST_ID", std::to_string(rank.rank).c_str(), 1);
    Job job(rank);
    if (job.is_server()) {
      std::thread end([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        job.all()->leave();
      });
      job.serve();
      end.join();
      return;
    }
    for (int call = 0; call < 1000; ++call) {
      const auto data = numbers(rank.rank, 20'000);
      const auto task = job.start(data);
      job.comm().succeed(*task);
      expect_sums(*data);
      if (task->algorithm().substr(0, 7) != "servers") break;
    }
    EXPECT_TRUE(job.annex().is_broken());
  });
}

TEST(AnnexFailure, AServerThatDiesCostsNoResult) {
  std::random_device device;
  for (int round = 0; round < 10; ++round) {
    const uint32_t seed = device();
    SCOPED_TRACE("seed " + std::to_string(seed));
    run_ranks(kRanks + 2,
              [seed](Rank& rank) {
                setenv("Q7X2_HOST_ID", std::to_string(rank.rank).c_str(), 1);
                if (rank.rank >= kRanks) without_shared_memory();
                Job job(rank);
                std::mt19937 random(seed);
                if (job.is_server()) {
                  if (rank.rank == kRanks) {
                    const std::chrono::microseconds life(random() % 100'000);
                    std::thread([life] {
                      std::this_thread::sleep_for(life);
                      raise(SIGKILL);
                    }).detach();
                  }
                  try {
                    job.serve();
                  } catch (const Error&) {
                    // The other server, when the annex fails.
                  }
                  while (rank.rank == kRanks) std::this_thread::sleep_for(test::kLong);
                  return;
                }
                bool is_alone = false;
                for (int call = 0; call < 10'000 && !is_alone; ++call) {
                  std::vector<std::pair<Buffer<float>, std::shared_ptr<CollectiveTask>>> calls;
                  for (int i = 0; i < 3; ++i) {
                    const auto data = numbers(rank.rank, 1 + random() % 100'000);
                    calls.emplace_back(data, job.start(data));
                  }
                  for (const auto& [data, task] : calls) {
                    job.comm().succeed(*task);
                    expect_sums(*data);
                    is_alone = task->algorithm().substr(0, 7) != "servers";
                  }
                }
                EXPECT_TRUE(is_alone);
                const auto data = numbers(rank.rank, 1000);
                job.comm().succeed(*job.start(data));
                expect_sums(*data);
              },
              {.killed = {kRanks}});
  }
}

// Its own group says who it was.
TEST(AnnexFailure, ARankThatDiesFailsTheCall) {
  run_ranks(kRanks + 1,
            [](Rank& rank) {
              setenv("Q7X2_HOST_ID", std::to_string(rank.rank).c_str(), 1);
              Job job(rank);
              if (job.is_server()) {
                EXPECT_THROW(job.serve(), Error);
                return;
              }
              if (rank.rank == 1) {
                job.start(numbers(rank.rank, 1 << 20));
                raise(SIGKILL);
              }
              for (int call = 0; call < 2; ++call) {
                const auto data = numbers(rank.rank, 1 << 20);
                const auto task = job.start(data);
                job.comm().await(*task);
                if (!task->error()) {
                  expect_sums(*data);
                  continue;
                }
                EXPECT_EQ(task->error()->rank(), 1) << task->error()->what();
                EXPECT_EQ(task->error()->code(), ErrorCode::kPeerFailed);
              }
              EXPECT_TRUE(job.group().error().has_value());
            },
            {.killed = {1}});
}

// There is time left for the ranks when the attempt has taken half of the call's.
TEST(AnnexFailure, AServerThatStandsStillCostsHalfOfTheTimeout) {
  run_ranks(kRanks + 1,
            [](Rank& rank) {
              setenv("Q7X2_HOST_ID", std::to_string(rank.rank).c_str(), 1);
              Job job(rank);
              if (job.is_server()) {
                raise(SIGSTOP);
                return;
              }
              const std::chrono::milliseconds timeout(4000 * test::kSlowdown);
              const auto data = numbers(rank.rank, 100'000);
              const auto task = job.start(data, -1, timeout);
              job.comm().succeed(*task);
              expect_sums(*data);
              EXPECT_NE(task->algorithm().substr(0, 7), "servers");
              rank.put("done", "");
              if (rank.rank > 0) return;
              for (int other = 1; other < kRanks; ++other) rank.get(other, "done");
              kill(rank.pid_of(kRanks), SIGKILL);
            },
            {.killed = {kRanks}});
}

}  // namespace
}  // namespace q7x2
