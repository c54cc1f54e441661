// The memory that ranks of one host share: its room, its limits, and who may still read it.
#include "transport/shm/shm_channel.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "comm.h"
#include "processor_time.h"
#include "ranks.h"

namespace q7x2 {
namespace {

using test::buffer;
using test::Buffer;
using test::Comm;
using test::cpu_seconds;
using test::Rank;
using test::run_ranks;

constexpr size_t kLarge = size_t{12} << 20;  // more than any window of slices

std::shared_ptr<CollectiveTask> broadcast(Comm& comm, const Buffer<int32_t>& data) {
  return comm.flat(Collective::kBroadcast, data, DType::kInt32, test::kLong, 0);
}

TEST(ShmChannel, StagingIsReusedAndJoinsUp) {
  run_ranks(1, [](Rank&) {
    const UcpContext context;
    ShmChannel channel(context, 1, 1);
    channel.join(0, 1);
    const auto a = channel.reserve(1000);
    const auto b = channel.reserve(ShmChannel::kArenaBytes / 2);
    ASSERT_TRUE(a && b);
    EXPECT_GE(b->offset, a->offset + a->bytes);
    EXPECT_FALSE(channel.reserve(ShmChannel::kArenaBytes / 2));
    const auto c = channel.reserve(5000);
    ASSERT_TRUE(c);
    channel.free(*a);
    EXPECT_EQ(channel.reserve(100)->offset, a->offset);
    channel.free(*a);
    channel.free(*c);
    channel.free(*b);
    const auto all = channel.reserve(ShmChannel::kArenaBytes);
    ASSERT_TRUE(all);
    EXPECT_FALSE(channel.reserve(1));
    channel.free(*all);
  });
}

/// Makes a group of two ranks, which may use the UCX transports `tls`, all if empty. Expects these
/// exchanges, and that both ranks know whether they share memory.
void expect_sharing(const std::vector<std::string>& tls, std::vector<std::string> exchanges,
                    bool shared) {
  run_ranks(2, [&](Rank& rank) {
    if (const auto& own = tls[static_cast<size_t>(rank.rank)]; !own.empty()) {
      ::setenv("UCX_TLS", own.c_str(), 1);
    }
    std::vector<std::string> made;
    test::ScriptedBootstrap bootstrap(rank, [&](const std::string& what, const std::string& mine) {
      made.push_back(what);
      rank.put(what, mine);
      return std::vector{rank.get(0, what), rank.get(1, what)};
    });
    const auto group = make_group(rank.runtime(), rank.rank, 2, "g", bootstrap);
    EXPECT_EQ(made, exchanges);
    EXPECT_EQ(group->messages().shares_memory(1 - rank.rank), shared);
    rank.barrier();
  });
}

TEST(ShmChannel, KeysRideOnTheCards) {
  expect_sharing({"", ""}, {"peer_info"}, true);
}

TEST(ShmChannel, KeysComeLateWithoutSysVSegments) {
  expect_sharing({"posix,self,tcp", "posix,self,tcp"}, {"peer_info", "memory"}, true);
}

TEST(ShmChannel, BothKnowThatOneCouldNotMapTheOther) {
  expect_sharing({"posix,self,tcp", ""}, {"peer_info", "memory"}, false);
  expect_sharing({"", "tcp"}, {"peer_info", "memory"}, false);
}

TEST(ShmChannel, TicketsAreFinite) {
  run_ranks(1, [](Rank&) {
    const UcpContext context;
    ShmChannel channel(context, 1, 1);
    channel.join(0, 1);
    std::set<int> taken;
    while (const auto ticket = channel.take_ticket()) taken.insert(*ticket);
    EXPECT_EQ(taken.size(), static_cast<size_t>(ShmChannel::kTickets));
    channel.free_ticket(7);
    EXPECT_EQ(channel.take_ticket(), 7);
  });
}

TEST(ShmChannel, PlacesLieBesideEachOtherBehindTheArena) {
  run_ranks(1, [](Rank&) {
    const UcpContext context;
    for (const int members : {2, 3, 5, 64, ShmChannel::kMaxMembers}) {
      ShmChannel channel(context, 1, members);
      const int self = members / 2;
      channel.join(self, members);
      ASSERT_GE(channel.places(), 4) << members;
      const std::byte* const end =
          channel.arena() + ShmChannel::kArenaBytes + ShmChannel::kPlacesBytes;
      const std::byte* next = channel.arena() + ShmChannel::kArenaBytes;
      for (int member = 0; member < members; ++member) {
        for (int place = 0; member != self && place < channel.places(); ++place) {
          EXPECT_EQ(channel.place(member, place), next) << members << ": " << member;
          next += channel.place_bytes();
        }
      }
      EXPECT_LE(next, end) << members;
      // Their tickets are nobody else's.
      while (const auto ticket = channel.take_ticket()) EXPECT_GE(*ticket, channel.places());
    }
  });
}

// Others that come late find the data of a root that could not wait for them: first as much as the
// arena holds, then the rest as they make room.
TEST(ShmChannel, ARootAheadOfTheOthersStalls) {
  run_ranks(3, [](Rank& rank) {
    Comm comm(rank.group());
    if (rank.rank > 0) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    std::vector<Buffer<int32_t>> data;
    std::vector<std::shared_ptr<CollectiveTask>> tasks;
    for (int32_t i = 0; i < 6; ++i) {
      data.push_back(buffer<int32_t>(kLarge / sizeof(int32_t), rank.rank == 0 ? i + 1 : 0));
      tasks.push_back(broadcast(comm, data.back()));
    }
    for (int32_t i = 0; i < 6; ++i) {
      comm.succeed(*tasks[static_cast<size_t>(i)]);
      EXPECT_EQ(*data[static_cast<size_t>(i)],
                std::vector<int32_t>(kLarge / sizeof(int32_t), i + 1));
    }
  });
}

// More descriptors than a mailbox holds.
TEST(ShmChannel, TinyMessagesQueueForOneWhoIsLate) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    if (rank.rank > 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    std::vector<Buffer<int32_t>> data;
    std::vector<std::shared_ptr<CollectiveTask>> tasks;
    for (int32_t i = 0; i < 500; ++i) {
      data.push_back(buffer<int32_t>(1, rank.rank == 0 ? i : -1));
      tasks.push_back(broadcast(comm, data.back()));
    }
    for (int32_t i = 0; i < 500; ++i) {
      comm.succeed(*tasks[static_cast<size_t>(i)]);
      EXPECT_EQ(data[static_cast<size_t>(i)]->front(), i);
    }
  });
}

TEST(ShmChannel, WhoLeavesIsStillRead) {
  run_ranks(3, [](Rank& rank) {
    auto data = buffer<int32_t>(50'000, rank.rank == 0 ? 42 : 0);
    {
      Comm comm(rank.group());
      if (rank.rank > 0) std::this_thread::sleep_for(std::chrono::milliseconds(150));
      comm.succeed(*broadcast(comm, data));
      comm.group().leave();
    }
    EXPECT_EQ(*data, std::vector<int32_t>(50'000, 42));
    rank.barrier();
  });
}

// A stalled sender and a waiting receiver sleep, and are woken.
TEST(ShmChannel, WaitingTakesNoProcessor) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    constexpr int kTurns = 5;
    const double before = cpu_seconds();
    const auto begin = Clock::now();
    for (int turn = 0; turn < kTurns; ++turn) {
      const auto data = buffer<int32_t>(kLarge / sizeof(int32_t), turn);
      // In turns the sender waits for room and the receiver for data.
      if (turn % 2 == rank.rank) std::this_thread::sleep_for(std::chrono::milliseconds(300));
      comm.succeed(*broadcast(comm, data));
    }
    const std::chrono::duration<double> elapsed = Clock::now() - begin;
    EXPECT_LT(cpu_seconds() - before, elapsed.count() / 2);
  });
}

TEST(ShmChannel, AReceiverThatWaitsIsNotLeftBehindByADeath) {
  run_ranks(3,
            [](Rank& rank) {
              Comm comm(rank.group());
              const auto data = buffer<int32_t>(kLarge / sizeof(int32_t), 1);
              comm.succeed(*comm.all_reduce(data));
              if (rank.rank == 2) {
                raise(SIGKILL);
              }
              const Error error = comm.failure(*comm.all_reduce(data));
              EXPECT_EQ(error.code(), ErrorCode::kPeerFailed);
              EXPECT_EQ(error.rank(), 2);
            },
            {.killed = {2}});
}

}  // namespace
}  // namespace q7x2
