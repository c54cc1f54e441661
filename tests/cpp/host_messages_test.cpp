// Messages of the user between ranks of one host, in shared memory: what nobody asks for, what is
// given up, and ranks that do not look.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "comm.h"
#include "processor_time.h"
#include "ranks.h"

namespace q7x2 {
namespace {

using std::chrono::milliseconds;
using test::Buffer;
using test::buffer;
using test::Comm;
using test::counting;
using test::cpu_seconds;
using test::Rank;
using test::run_ranks;

constexpr size_t kSmall = 5;          // in a descriptor
constexpr size_t kWhole = 1000;       // in one place
constexpr size_t kLarge = 1'000'003;  // in pieces

TEST(HostMessages, GoThroughSharedMemory) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    ASSERT_TRUE(comm.group().messages().shares_memory(1 - rank.rank));
    for (const size_t count : {size_t{0}, kSmall, kWhole, kLarge}) {
      const auto data = buffer<int32_t>(count);
      const auto task = rank.rank == 0 ? comm.send(1, 0, data) : comm.receive(0, 0, data);
      comm.succeed(*task);
      Locked locked(rank.runtime().lock());
      const Traffic& traffic = task->record(locked).traffic;
      const uint64_t bytes = 4 * count;
      EXPECT_EQ(traffic.sent_memory, rank.rank == 0 ? bytes : 0);
      EXPECT_EQ(traffic.received_memory, rank.rank == 1 ? bytes : 0);
      EXPECT_EQ(traffic.sent_network + traffic.received_network, 0U);
    }
  });
}

// A receiver that computes, and has nothing in progress, takes them all the same.
TEST(HostMessages, ThatNobodyAsksForTakeNoPlace) {
  run_ranks(3, [](Rank& rank) {
    Comm comm(rank.group());
    constexpr int kMessages = 300;
    if (rank.rank == 0) {
      for (int i = 0; i < kMessages; ++i) {
        const size_t count = i % 2 == 0 ? kSmall : kWhole;
        comm.succeed(*comm.send(1, static_cast<uint32_t>(i), counting(count, i)));
      }
    }
    rank.barrier();
    const auto sum = buffer<int32_t>(kLarge, 1);
    comm.succeed(*comm.all_reduce(sum));
    EXPECT_EQ(sum->back(), 3);
    for (int i = kMessages; rank.rank == 1 && i-- > 0;) {
      const auto data = buffer<int32_t>(i % 2 == 0 ? kSmall : kWhole);
      comm.succeed(*comm.receive(0, static_cast<uint32_t>(i), data));
      EXPECT_TRUE(*data == *counting(data->size(), i)) << i;
    }
    comm.succeed(*comm.barrier());
  });
}

// The receiver asks for the last one first.
TEST(HostMessages, OnesThatNobodyAsksForDoNotHoldUpOthers) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    constexpr uint32_t kMessages = 40;
    std::vector<std::shared_ptr<MessageTask>> tasks;
    if (rank.rank == 0) {
      for (uint32_t i = 0; i < kMessages; ++i) {
        tasks.push_back(comm.send(1, i, counting(kLarge, static_cast<int32_t>(i))));
      }
    }
    for (uint32_t i = kMessages; rank.rank == 1 && i-- > 0;) {
      const auto data = buffer<int32_t>(kLarge);
      comm.succeed(*comm.receive(0, i, data));
      EXPECT_TRUE(*data == *counting(kLarge, static_cast<int32_t>(i))) << i;
    }
    for (const auto& task : tasks) comm.succeed(*task);
  });
}

TEST(HostMessages, AStoppedReceiverHoldsUpOnlyWhatItGets) {
  run_ranks(3, [](Rank& rank) {
    Comm comm(rank.group());
    const auto data = buffer<int32_t>(kLarge, 7);
    std::vector<std::shared_ptr<MessageTask>> tasks;
    if (rank.rank == 1) tasks.push_back(comm.receive(0, 0, buffer<int32_t>(kLarge)));
    rank.barrier();
    if (rank.rank == 0) {
      ::kill(rank.pid_of(1), SIGSTOP);
      for (int i = 0; i < 100; ++i) tasks.push_back(comm.send(1, 1, counting(kWhole, i)));
      tasks.push_back(comm.send(1, 0, data));
      for (int i = 0; i < 20; ++i) comm.succeed(*comm.send(2, 0, data));
      EXPECT_FALSE(tasks.back()->done());
      ::kill(rank.pid_of(1), SIGCONT);
    } else if (rank.rank == 2) {
      for (int i = 0; i < 20; ++i) comm.succeed(*comm.receive(0, 0, buffer<int32_t>(kLarge)));
    } else {
      for (int i = 0; i < 100; ++i) {
        const auto got = buffer<int32_t>(kWhole);
        comm.succeed(*comm.receive(0, 1, got));
        EXPECT_EQ(got->front(), i);
      }
    }
    for (const auto& task : tasks) comm.succeed(*task);
    comm.succeed(*comm.barrier());
  });
}

// Ranks that wait ask each other what they do. One that is stopped answers nothing, and is not
// asked again: UCX would try without a pause to write into its full queue.
TEST(HostMessages, WaitingForAStoppedRankCostsNoProcessor) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    constexpr uint32_t kMessages = 200;
    const auto data = buffer<int32_t>(kSmall);
    std::vector<std::shared_ptr<MessageTask>> tasks;
    rank.barrier();
    if (rank.rank == 0) {
      for (uint32_t i = 0; i < kMessages; ++i) tasks.push_back(comm.receive(1, i, data));
      const double before = cpu_seconds();
      const auto begin = Clock::now();
      EXPECT_FALSE(rank.runtime().wait(*tasks.front(), begin + std::chrono::seconds(4)));
      const std::chrono::duration<double> elapsed = Clock::now() - begin;
      EXPECT_LT(cpu_seconds() - before, elapsed.count() / 4);
      ::kill(rank.pid_of(1), SIGCONT);
    } else {
      {
        // One that is stopped in the middle of a write keeps the reader awake.
        const Locked locked(rank.runtime().lock());
        ::raise(SIGSTOP);
      }
      for (uint32_t i = 0; i < kMessages; ++i) tasks.push_back(comm.send(0, i, data));
    }
    for (const auto& task : tasks) comm.succeed(*task);
  });
}

// The group goes on. The receiver never hears of the message, or hears that it will not come.
TEST(HostMessages, OneThatIsGivenUp) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    if (rank.rank == 0) {
      const auto given_up = comm.send(1, 3, counting(kLarge, 0), milliseconds(100));
      EXPECT_EQ(comm.failure(*given_up).code(), ErrorCode::kTimeout);
      comm.succeed(*comm.send(1, 3, counting(kLarge, 5)));
    } else {
      std::this_thread::sleep_for(milliseconds(300));
      const auto data = buffer<int32_t>(kLarge);
      comm.succeed(*comm.receive(0, 3, data));
      EXPECT_TRUE(*data == *counting(kLarge, 5));
    }
    comm.succeed(*comm.barrier());
    EXPECT_FALSE(comm.group().error());
  });
}

TEST(HostMessages, OneThatIsGivenUpHalfWay) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    constexpr size_t kVeryLarge = 50'000'000;
    if (rank.rank == 0) {
      // Its receiver is stopped in the middle of it.
      const auto data = buffer<int32_t>(kVeryLarge, 3);
      const auto task = comm.send(1, 0, data, milliseconds(500));
      rank.barrier();
      ::kill(rank.pid_of(1), SIGSTOP);
      comm.await(*task);
      ::kill(rank.pid_of(1), SIGCONT);
      rank.put("done", task->error() ? "no" : "yes");
    } else {
      const auto data = buffer<int32_t>(kVeryLarge);
      const auto task = comm.receive(0, 0, data);
      rank.barrier();
      comm.await(*task);
      if (rank.get(0, "done") == "no") {
        ASSERT_TRUE(task->error());
        EXPECT_EQ(task->error()->code(), ErrorCode::kAborted) << task->error()->what();
        EXPECT_EQ(task->error()->rank(), 0);
      }
    }
    comm.succeed(*comm.barrier());
    EXPECT_FALSE(comm.group().error());
  });
}

// Memory of a receive that has timed out is not written to any more.
TEST(HostMessages, AReceiveThatIsGivenUpHalfWay) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    if (rank.rank == 0) {
      const auto task = comm.send(1, 0, counting(kLarge, 0));
      rank.barrier();
      comm.succeed(*task);
      comm.succeed(*comm.send(1, 0, counting(kLarge, 9)));
    } else {
      const auto data = buffer<int32_t>(kLarge, -1);
      const auto task = comm.receive(0, 0, data, milliseconds(1));
      comm.await(*task);
      const std::vector<int32_t> copy(*data);
      rank.barrier();
      // Perhaps it was given up before its message was there.
      for (int32_t first = 0; first != 9;) {
        const auto next = buffer<int32_t>(kLarge);
        comm.succeed(*comm.receive(0, 0, next));
        first = next->front();
      }
      if (task->error()) {
        EXPECT_EQ(task->error()->code(), ErrorCode::kTimeout);
        EXPECT_TRUE(*data == copy);
      }
    }
    comm.group().leave();
    rank.barrier();
  });
}

// All ranks know the same messages, and post their sends and receives in orders of their own.
TEST(HostMessages, RandomOnes) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  run_ranks(4, [&](Rank& rank) {
    rank.at("seed " + std::to_string(seed));
    Comm comm(rank.group());
    struct Message {
      int from;
      int to;
      uint32_t tag;
      size_t count;
    };
    std::mt19937 shared(seed);
    std::vector<Message> messages;
    for (int i = 0; i < 400; ++i) {
      const int from = static_cast<int>(shared() % 4);
      const int to = (from + 1 + static_cast<int>(shared() % 3)) % 4;
      const size_t scale = size_t{1} << (shared() % 19);
      messages.push_back({from, to, static_cast<uint32_t>(shared() % 3), shared() % scale});
    }
    std::mt19937 own(seed + 1 + static_cast<unsigned>(rank.rank));
    std::vector<std::shared_ptr<MessageTask>> tasks(messages.size());
    std::vector<Buffer<int32_t>> received(messages.size());
    // Sends and receives run ahead of each other by some of them.
    size_t sends = 0;
    size_t receives = 0;
    while (sends < messages.size() || receives < messages.size()) {
      const bool is_send =
          receives == messages.size() || (sends < messages.size() && own() % 2 == 0);
      size_t& next = is_send ? sends : receives;
      for (size_t steps = own() % 50; steps > 0 && next < messages.size(); --steps, ++next) {
        const Message& message = messages[next];
        const auto first = static_cast<int32_t>(next);
        if (is_send && message.from == rank.rank) {
          tasks[next] = comm.send(message.to, message.tag, counting(message.count, first));
        } else if (!is_send && message.to == rank.rank) {
          received[next] = buffer<int32_t>(message.count, -1);
          tasks[next] = comm.receive(message.from, message.tag, received[next]);
        }
      }
      if (own() % 8 == 0) rank.runtime().drive();
    }
    for (size_t i = 0; i < messages.size(); ++i) {
      if (!tasks[i]) continue;
      comm.succeed(*tasks[i]);
      if (received[i]) {
        EXPECT_TRUE(*received[i] == *counting(messages[i].count, static_cast<int32_t>(i))) << i;
      }
    }
    comm.succeed(*comm.barrier());
  });
}

// Rank 2 has no memory that the others can map: its messages go through UCX.
TEST(HostMessages, AnySourceNearAndFar) {
  run_ranks(3, [](Rank& rank) {
    if (rank.rank == 2) ::setenv("UCX_TLS", "posix,self,tcp", 1);
    Comm comm(rank.group());
    ASSERT_TRUE(rank.rank == 2 || !comm.group().messages().shares_memory(2));
    for (const size_t count : {kSmall, kWhole, kLarge}) {
      for (int round = 0; round < 20; ++round) {
        const auto tag = static_cast<uint32_t>(count);
        if (rank.rank != 0) {
          comm.succeed(*comm.send(0, tag, counting(count, 100 * round + rank.rank)));
          continue;
        }
        std::vector<std::pair<std::shared_ptr<MessageTask>, Buffer<int32_t>>> receives;
        for (int i = 0; i < 2; ++i) {
          const auto data = buffer<int32_t>(count);
          receives.emplace_back(comm.receive(MessageTask::kAnySource, tag, data), data);
        }
        for (const auto& [task, data] : receives) {
          comm.succeed(*task);
          EXPECT_EQ(data->front() % 100, task->source());
          EXPECT_TRUE(*data == *counting(count, data->front()));
        }
      }
    }
    comm.succeed(*comm.barrier());
  });
}

TEST(HostMessages, AnySourceThatNobodySendsToTimesOut) {
  run_ranks(3, [](Rank& rank) {
    if (rank.rank == 2) ::setenv("UCX_TLS", "posix,self,tcp", 1);
    Comm comm(rank.group());
    if (rank.rank == 0) {
      const auto early =
          comm.receive(MessageTask::kAnySource, 0, buffer<int32_t>(kSmall), milliseconds(50));
      EXPECT_EQ(comm.failure(*early).code(), ErrorCode::kTimeout);
    }
    rank.barrier();
    for (const int sender : {1, 2}) {
      if (rank.rank == sender) comm.succeed(*comm.send(0, 0, counting(kSmall, sender)));
      if (rank.rank != 0) continue;
      const auto data = buffer<int32_t>(kSmall);
      const auto task = comm.receive(MessageTask::kAnySource, 0, data);
      comm.succeed(*task);
      EXPECT_EQ(data->front(), task->source());
    }
    comm.succeed(*comm.barrier());
  });
}

}  // namespace
}  // namespace q7x2
