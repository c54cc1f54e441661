// Point to point: order, tags, any source, lengths that do not fit, and ranks that are gone.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "comm.h"
#include "ranks.h"

namespace q7x2 {
namespace {

using std::chrono::milliseconds;
using test::Buffer;
using test::buffer;
using test::Comm;
using test::counting;
using test::Rank;
using test::run_ranks;

// Inlined, one packet, several packets, rendezvous.
const std::vector<size_t> kCounts = {0, 1, 1000, 20'001, 1'000'003};

bool contains(const Error& error, const std::string& text) {
  return std::string(error.what()).find(text) != std::string::npos;
}

TEST(Message, EverySizeFromEveryRankToEveryRank) {
  run_ranks(3, [](Rank& rank) {
    Comm comm(rank.group());
    for (const size_t count : kCounts) {
      std::vector<std::shared_ptr<MessageTask>> sent;
      std::vector<std::pair<std::shared_ptr<MessageTask>, Buffer<int32_t>>> received;
      for (int other = 0; other < comm.size(); ++other) {
        if (other == rank.rank) continue;
        sent.push_back(comm.send(other, 1, counting(count, 10 * rank.rank + other)));
        const auto data = buffer<int32_t>(count, -1);
        received.emplace_back(comm.receive(other, 1, data), data);
      }
      for (const auto& task : sent) comm.succeed(*task);
      for (const auto& [task, data] : received) {
        comm.succeed(*task);
        EXPECT_TRUE(*data == *counting(count, 10 * task->source() + rank.rank)) << task->name();
      }
    }
  });
}

TEST(Message, TagsOutOfOrder) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    const std::vector<uint32_t> sent_order = {5, 0, 0xffffffff, 9, 2};
    const std::vector<uint32_t> received_order = {9, 0xffffffff, 2, 0, 5};
    for (const size_t count : kCounts) {
      if (rank.rank == 0) {
        std::vector<std::shared_ptr<MessageTask>> tasks;
        for (const uint32_t tag : sent_order) {
          tasks.push_back(comm.send(1, tag, counting(count, static_cast<int32_t>(tag % 1000))));
        }
        for (const auto& task : tasks) comm.succeed(*task);
      } else {
        for (const uint32_t tag : received_order) {
          const auto data = buffer<int32_t>(count);
          comm.succeed(*comm.receive(0, tag, data));
          EXPECT_TRUE(*data == *counting(count, static_cast<int32_t>(tag % 1000))) << tag;
        }
      }
    }
  });
}

TEST(Message, OneTagKeepsTheOrderOfTheSends) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    // Small ones must not overtake large ones, which go another way.
    const auto length = [](int i) { return i % 3 == 0 ? size_t{200'000} : size_t{3}; };
    constexpr int kMessages = 30;
    std::vector<std::shared_ptr<MessageTask>> tasks;
    std::vector<Buffer<int32_t>> data;
    for (int i = 0; i < kMessages; ++i) {
      data.push_back(buffer<int32_t>(length(i), rank.rank == 0 ? i : -1));
      tasks.push_back(rank.rank == 0 ? comm.send(1, 4, data.back())
                                     : comm.receive(0, 4, data.back()));
    }
    for (int i = 0; i < kMessages; ++i) {
      comm.succeed(*tasks[static_cast<size_t>(i)]);
      EXPECT_EQ(data[static_cast<size_t>(i)]->front(), i);
      EXPECT_EQ(data[static_cast<size_t>(i)]->back(), i);
    }
  });
}

TEST(Message, AnySource) {
  run_ranks(4, [](Rank& rank) {
    Comm comm(rank.group());
    for (const size_t count : kCounts) {
      // A tag for each round: nobody waits for the slower ones before the next.
      const auto tag = static_cast<uint32_t>(count);
      if (rank.rank != 0) {
        comm.succeed(*comm.send(0, tag, counting(count, rank.rank)));
        continue;
      }
      std::set<int> sources;
      for (int i = 1; i < comm.size(); ++i) {
        const auto data = buffer<int32_t>(count);
        const auto task = comm.receive(MessageTask::kAnySource, tag, data);
        comm.succeed(*task);
        sources.insert(task->source());
        EXPECT_TRUE(*data == *counting(count, task->source()));
      }
      EXPECT_EQ(sources, (std::set<int>{1, 2, 3})) << count;
    }
  });
}

TEST(Message, AnySourceKeepsToItsTag) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    if (rank.rank == 0) {
      comm.succeed(*comm.send(1, 1, counting(4, 100)));
      comm.succeed(*comm.send(1, 2, counting(4, 200)));
    } else {
      const auto data = buffer<int32_t>(4);
      comm.succeed(*comm.receive(MessageTask::kAnySource, 2, data));
      EXPECT_EQ(data->front(), 200);
      comm.succeed(*comm.receive(MessageTask::kAnySource, 1, data));
      EXPECT_EQ(data->front(), 100);
    }
  });
}

TEST(Message, GroupsDoNotMix) {
  run_ranks(2, [](Rank& rank) {
    Comm first(rank.group("first"));
    Comm second(rank.group("second", {1, 0}));
    const int peer_in_second = rank.rank;  // the ranks are the other way round there
    if (rank.rank == 0) {
      first.succeed(*first.send(1, 3, counting(4, 1)));
      second.succeed(*second.send(peer_in_second, 3, counting(4, 2)));
    } else {
      const auto data = buffer<int32_t>(4);
      second.succeed(*second.receive(peer_in_second, 3, data));
      EXPECT_EQ(data->front(), 2);
      first.succeed(*first.receive(0, 3, data));
      EXPECT_EQ(data->front(), 1);
    }
  });
}

TEST(Message, MixesWithCollectives) {
  run_ranks(3, [](Rank& rank) {
    Comm comm(rank.group());
    const int right = (rank.rank + 1) % 3;
    const int left = (rank.rank + 2) % 3;
    for (int32_t i = 0; i < 50; ++i) {
      const auto sum = buffer<int32_t>(1000, i);
      const auto got = buffer<int32_t>(100);
      const auto collective = comm.all_reduce(sum);
      const auto received = comm.receive(left, 0, got);
      const auto sent = comm.send(right, 0, counting(100, 1000 * rank.rank + i));
      comm.succeed(*sent);
      comm.succeed(*received);
      comm.succeed(*collective);
      EXPECT_EQ(sum->back(), 3 * i);
      EXPECT_TRUE(*got == *counting(100, 1000 * left + i));
    }
  });
}

// A length that does not fit fails that one message, and the group goes on.
TEST(Message, LengthsThatDoNotFit) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    const std::vector<std::pair<size_t, size_t>> lengths = {
        {10, 9}, {9, 10}, {0, 1}, {1, 0}, {1'000'000, 1}, {1, 1'000'000}, {1'000'000, 500'000}};
    for (const auto& [sent, expected] : lengths) {
      const std::string title = std::to_string(sent) + " for " + std::to_string(expected);
      rank.at(title);
      if (rank.rank == 0) {
        comm.await(*comm.send(1, 0, counting(sent, 0)));
      } else {
        const Error error = comm.failure(*comm.receive(0, 0, buffer<int32_t>(expected)));
        EXPECT_EQ(error.code(), ErrorCode::kMismatch) << title << ": " << error.what();
        EXPECT_TRUE(contains(error, "recv")) << error.what();
      }
      EXPECT_FALSE(comm.group().error()) << title;
      comm.succeed(*comm.barrier());
    }
  });
}

TEST(Message, TimeOutNamesTheRankAndSparesTheGroup) {
  run_ranks(3, [](Rank& rank) {
    Comm comm(rank.group());
    if (rank.rank == 0) {
      const Error error = comm.failure(*comm.receive(2, 11, buffer<int32_t>(1), milliseconds(100)));
      EXPECT_EQ(error.code(), ErrorCode::kTimeout);
      for (const char* part : {"Timed out after 100 ms", "recv", "tag 11", "rank 2"}) {
        EXPECT_TRUE(contains(error, part)) << part << " in " << error.what();
      }
      const Error any = comm.failure(
          *comm.receive(MessageTask::kAnySource, 12, buffer<int32_t>(1), milliseconds(100)));
      EXPECT_EQ(any.code(), ErrorCode::kTimeout);
      EXPECT_TRUE(contains(any, "any")) << any.what();
      EXPECT_FALSE(comm.group().error());
    }
    comm.succeed(*comm.barrier());
  });
}

TEST(Message, AReceiveThatTimedOutTakesNothing) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    const auto data = buffer<int32_t>(4, -1);
    if (rank.rank == 0) {
      EXPECT_EQ(comm.failure(*comm.receive(1, 0, data, milliseconds(50))).code(),
                ErrorCode::kTimeout);
      rank.barrier();
      const auto later = buffer<int32_t>(4);
      comm.succeed(*comm.receive(1, 0, later));
      EXPECT_TRUE(*later == *counting(4, 8));
      EXPECT_EQ(data->front(), -1);
    } else {
      rank.barrier();
      comm.succeed(*comm.send(0, 0, counting(4, 8)));
    }
  });
}

TEST(Message, ALateReceiverGetsWhatWasSentBeforeTheSenderLeft) {
  run_ranks(2, [](Rank& rank) {
    if (rank.rank == 0) {
      Comm comm(rank.group());
      comm.succeed(*comm.send(1, 0, counting(100, 5)));
      comm.group().leave();
      rank.barrier();
    } else {
      Comm comm(rank.group());
      rank.barrier();
      const auto data = buffer<int32_t>(100);
      comm.succeed(*comm.receive(0, 0, data));
      EXPECT_TRUE(*data == *counting(100, 5));
      const Error error = comm.failure(*comm.receive(0, 0, data));
      EXPECT_EQ(error.code(), ErrorCode::kPeerLeft) << error.what();
      EXPECT_EQ(error.rank(), 0);
    }
  });
}

TEST(Message, OneThatWasSentBeforeTheSendersDeathArrives) {
  test::RunOptions options;
  options.killed = {0};
  run_ranks(
      2,
      [](Rank& rank) {
        Comm comm(rank.group());
        if (rank.rank == 0) {
          comm.succeed(*comm.send(1, 0, counting(100, 5)));
          ::kill(::getpid(), SIGKILL);
        }
        const auto data = buffer<int32_t>(100);
        comm.succeed(*comm.receive(0, 0, data));
        EXPECT_TRUE(*data == *counting(100, 5));
        const Error error = comm.failure(*comm.receive(0, 0, data));
        EXPECT_EQ(error.code(), ErrorCode::kPeerFailed) << error.what();
        EXPECT_EQ(error.rank(), 0);
      },
      options);
}

// The group is over at the receiver, whose process goes on.
TEST(Message, SendingToOneThatLeft) {
  run_ranks(2, [](Rank& rank) {
    auto other = rank.group("other");  // keeps the connection
    Comm comm(rank.group());
    comm.succeed(*comm.barrier());
    if (rank.rank == 1) {
      comm.group().leave();
      rank.barrier();
    } else {
      rank.barrier();
      const Error error = comm.failure(*comm.send(1, 0, counting(4'000'000, 0)));
      EXPECT_EQ(error.code(), ErrorCode::kPeerLeft) << error.what();
      EXPECT_EQ(error.rank(), 1);
    }
    rank.barrier();
  });
}

TEST(Message, WhatAGroupLeftBehindDoesNotReachTheNext) {
  run_ranks(2, [](Rank& rank) {
    for (int i = 0; i < 5; ++i) {
      Comm comm(rank.group(std::to_string(i)));
      if (rank.rank == 0) {
        comm.succeed(*comm.send(1, 0, counting(10, i)));
        comm.succeed(*comm.send(1, 0, counting(10, -1)));  // nobody receives this one
      } else {
        const auto data = buffer<int32_t>(10);
        comm.succeed(*comm.receive(0, 0, data));
        EXPECT_EQ(data->front(), i);
      }
      rank.barrier();  // who sends to a rank that has left is told so
    }
  });
}

}  // namespace
}  // namespace q7x2
