// Mail between ranks: headers, payloads, who does not take them, and a group that fails.
#include "late/mail.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "ranks.h"

namespace q7x2 {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::Rank;
using test::run_ranks;

constexpr size_t kAll = ~size_t{0};

std::shared_ptr<Mail> mail_of(Rank& rank, size_t most_sends = kAll,
                              MessageQueue::Reader reader = MessageQueue::Reader::kDrives) {
  const auto group = rank.group();
  return Mail::make(group, 2, std::make_shared<MessageQueue>(group, reader), most_sends);
}

Bytes bytes(size_t size, int value) {
  const Bytes made = Bytes::make(size);
  std::memset(made.data.get(), value, size);
  return made;
}

/// The next whole message.
PeerMessage next(Mail& mail) {
  const TimePoint deadline = Clock::now() + seconds(30);
  while (Clock::now() < deadline) {
    if (std::optional<PeerMessage> message = mail.receive(deadline)) return *message;
  }
  ADD_FAILURE() << "no message";
  return {};
}

void send(Mail& mail, int peer, int64_t number, const Bytes& payload = {}) {
  mail.send(peer, std::vector<int64_t>{number, -number}, payload);
}

// They may overtake each other, all but those without a payload.
TEST(Mail, AllMessagesArriveOnceAndWhole) {
  constexpr size_t kLarge = 3'000'001;
  run_ranks(3, [](Rank& rank) {
    const auto mail = mail_of(rank);
    for (const int peer : mail->peers()) {
      for (int i = 0; i < 20; ++i) {
        send(*mail, peer, i, i % 2 == 0 ? Bytes() : bytes(i % 4 == 1 ? kLarge : 5, i));
      }
    }
    std::set<std::pair<int, int64_t>> arrived;
    std::vector<int64_t> next_without(3, 0);
    while (arrived.size() < 40) {
      const PeerMessage message = next(*mail);
      const int64_t number = message.header[0];
      ASSERT_EQ(message.header[1], -number);
      ASSERT_TRUE(arrived.emplace(message.sender, number).second);
      const size_t size = number % 2 == 0 ? 0 : number % 4 == 1 ? kLarge : 5;
      ASSERT_EQ(message.payload.size, size);
      if (size > 0) {
        const Bytes sent = bytes(size, static_cast<int>(number));
        EXPECT_EQ(std::memcmp(message.payload.data.get(), sent.data.get(), size), 0);
      } else {
        int64_t& expected = next_without[static_cast<size_t>(message.sender)];
        EXPECT_EQ(number, std::exchange(expected, expected + 2));
      }
    }
    mail->finish_sends();
    rank.barrier();
  });
}

TEST(Mail, AThreadThatSleepsGetsMessagesToo) {
  run_ranks(2, [](Rank& rank) {
    const auto mail = mail_of(rank, kAll, MessageQueue::Reader::kSleeps);
    for (int i = 0; i < 20; ++i) {
      send(*mail, 1 - rank.rank, i, bytes(100'000, i));
      EXPECT_EQ(next(*mail).header[0], i);
    }
    mail->finish_sends();
    rank.barrier();
  });
}

TEST(Mail, AWaitForMessagesEndsAtItsDeadline) {
  run_ranks(2, [](Rank& rank) {
    for (const auto reader : {MessageQueue::Reader::kDrives, MessageQueue::Reader::kSleeps}) {
      MessageQueue queue(rank.group("of " + std::to_string(static_cast<int>(reader))), reader);
      EXPECT_FALSE(queue.receive(Clock::now() + milliseconds(20)));
      EXPECT_FALSE(queue.receive(Clock::now()));
    }
    rank.barrier();
  });
}

TEST(Mail, MessagesToARankThatTakesNoneAreDroppedBeyondALimit) {
  run_ranks(2, [](Rank& rank) {
    constexpr size_t kMost = 8;
    constexpr int64_t kEnd = 100;
    const auto mail = mail_of(rank, kMost);
    if (rank.rank == 0) {
      // A payload is received only when its receiver has looked at the header.
      for (int i = 0; i < 20; ++i) send(*mail, 1, i, bytes(10'000'000, i));
      EXPECT_TRUE(mail->is_loading(1));
    }
    rank.barrier();
    if (rank.rank == 1) {
      // A header that is taken at once does not count, so there are 4 to 8 messages. The others are
      // dropped, whichever they are.
      size_t count = 0;
      int64_t last = -1;
      for (TimePoint end = Clock::now() + seconds(60); Clock::now() < end;) {
        const std::optional<PeerMessage> message = mail->receive(end);
        if (!message) continue;
        if (message->header[0] == kEnd) {
          end = Clock::now() + seconds(1);  // it may have overtaken a payload
          continue;
        }
        EXPECT_GT(message->header[0], std::exchange(last, message->header[0]));
        ++count;
      }
      EXPECT_GE(count, kMost / 2);
      EXPECT_LE(count, kMost);
    } else {
      mail->finish_sends();
      EXPECT_FALSE(mail->is_loading(1));
      send(*mail, 1, kEnd);
      mail->finish_sends();
    }
    rank.barrier();
  });
}

TEST(Mail, TwoMailsMayShareAnInbox) {
  run_ranks(2, [](Rank& rank) {
    const auto first = rank.group("first");
    const auto queue = std::make_shared<MessageQueue>(first, MessageQueue::Reader::kDrives);
    const auto a = Mail::make(first, 2, queue, kAll);
    const auto b = Mail::make(rank.group("second"), 2, queue, kAll);
    send(*a, 1 - rank.rank, 1);
    send(*b, 1 - rank.rank, 2);
    queue->put({.sender = rank.rank, .header = {3}, .payload = {}});
    int64_t sum = 0;
    for (int i = 0; i < 3; ++i) sum += next(*a).header[0];
    EXPECT_EQ(sum, 6);
    rank.barrier();
  });
}

TEST(Mail, ADeadRankIsAnErrorOfTheReceiver) {
  run_ranks(2,
            [](Rank& rank) {
              const auto mail = mail_of(rank);
              rank.barrier();
              if (rank.rank == 1) ::kill(::getpid(), SIGKILL);
              try {
                next(*mail);
                ADD_FAILURE() << "a message of a dead rank";
              } catch (const Error& error) {
                EXPECT_EQ(error.code(), ErrorCode::kPeerFailed) << error.what();
              }
            },
            {.killed = {1}});
}

}  // namespace
}  // namespace q7x2
