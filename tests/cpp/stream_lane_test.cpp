// Messages between two lanes: every message arrives once, bit-equal, in the order of its tag.
#include "transport/stream/stream_lane.h"

#include <algorithm>
#include <deque>

#include <gtest/gtest.h>

#include "stream_pair.h"

namespace q7x2::stream_test {
namespace {

constexpr uint64_t kAny = 0;

TEST(StreamLane, MessagesOfAllLengthsArrive) {
  Pair pair;
  uint64_t tag = 1;
  for (const size_t size : {size_t{0}, size_t{1}, size_t{4096}, size_t{4097}, size_t{65536},
                            size_t{300'000}, size_t{9'000'000}, size_t{20'000'000}}) {
    const Bytes sent = random_bytes(size, tag);
    Bytes got(size);
    const uint64_t send = pair.a.send(sent, tag);
    const uint64_t receive = pair.b.receive(got, tag);
    ASSERT_TRUE(pair.run_until([&] { return pair.a.is_done(send) && pair.b.is_done(receive); }))
        << size;
    EXPECT_EQ(pair.a.outcome(send)->status, StreamStatus::kOk);
    EXPECT_EQ(pair.b.outcome(receive)->status, StreamStatus::kOk);
    EXPECT_EQ(pair.b.outcome(receive)->length, size);
    EXPECT_EQ(pair.b.outcome(receive)->tag, tag);
    EXPECT_TRUE(got == sent) << size;
    ++tag;
  }
  EXPECT_TRUE(pair.run_until([&] { return pair.a.path->is_flushed(); }));
  EXPECT_EQ(pair.a.path->counts().connections_lost, 0);
}

TEST(StreamLane, MessagesWaitForTheirReceives) {
  Pair pair;
  const Bytes first = random_bytes(100'000, 1);
  const Bytes second = random_bytes(10, 2);
  pair.a.send(first, 5);
  pair.a.send(second, 6);
  ASSERT_TRUE(
      pair.run_until([&] { return pair.b.lane.find_unexpected(6, ~uint64_t{0}).has_value(); }));
  EXPECT_EQ(pair.b.lane.find_unexpected(0, kAny).value_or(0), 5U);
  EXPECT_FALSE(pair.b.lane.find_unexpected(7, ~uint64_t{0}));
  Bytes got_second(10);
  Bytes got_first(100'000);
  const uint64_t two = pair.b.receive(got_second, 6);
  const uint64_t one = pair.b.receive(got_first, 5);
  ASSERT_TRUE(pair.run_until([&] { return pair.b.is_done(one) && pair.b.is_done(two); }));
  EXPECT_TRUE(got_first == first && got_second == second);
}

TEST(StreamLane, MessagesOfATagKeepTheirOrder) {
  Pair pair;
  std::deque<Bytes> sent;
  std::deque<Bytes> got;
  std::vector<uint64_t> receives;
  std::mt19937_64 random(3);
  for (uint64_t i = 0; i < 300; ++i) {
    const size_t size = random() % (i % 7 == 0 ? 400'000 : 5'000);
    sent.push_back(random_bytes(size, i));
    got.emplace_back(400'000);
    pair.a.send(sent.back(), 1 + i % 2);
  }
  // From either tag: the order is that of the sends.
  for (Bytes& each : got) receives.push_back(pair.b.receive(each, 0, kAny));
  ASSERT_TRUE(pair.run_until([&] {
    return std::ranges::all_of(receives, [&](uint64_t each) { return pair.b.is_done(each); });
  }));
  for (size_t i = 0; i < sent.size(); ++i) {
    const Outcome outcome = *pair.b.outcome(receives[i]);
    ASSERT_EQ(outcome.length, sent[i].size()) << i;
    EXPECT_EQ(outcome.tag, 1 + i % 2);
    EXPECT_TRUE(std::equal(sent[i].begin(), sent[i].end(), got[i].begin())) << i;
  }
}

TEST(StreamLane, ALongMessageThatNobodyWantsBlocksNothing) {
  Pair pair;
  const Bytes unwanted = random_bytes(30'000'000, 1);
  const uint64_t stuck = pair.a.send(unwanted, 1);
  for (uint64_t i = 0; i < 40; ++i) {
    const Bytes sent = random_bytes(500'000, i);
    Bytes got(sent.size());
    const uint64_t send = pair.a.send(sent, 2);
    const uint64_t receive = pair.b.receive(got, 2);
    ASSERT_TRUE(pair.run_until([&] { return pair.a.is_done(send) && pair.b.is_done(receive); }));
    EXPECT_TRUE(got == sent);
  }
  EXPECT_FALSE(pair.a.is_done(stuck));
  Bytes got(unwanted.size());
  const uint64_t receive = pair.b.receive(got, 1);
  ASSERT_TRUE(pair.run_until([&] { return pair.a.is_done(stuck) && pair.b.is_done(receive); }));
  EXPECT_TRUE(got == unwanted);
}

TEST(StreamLane, AFloodThatNobodyWantsStaysWithinTheBounceMemory) {
  StreamOptions options;
  options.bounce_bytes = 1 << 20;
  Pair pair(options);
  const Bytes sent = random_bytes(60'000, 1);
  for (int i = 0; i < 2000; ++i) pair.a.send(sent, 1);
  ASSERT_TRUE(pair.run_until([&] { return pair.b.lane.find_unexpected(0, kAny).has_value(); }));
  for (int i = 0; i < 3000; ++i) pair.step();
  EXPECT_LE(pair.a.path->counts().bytes_acknowledged, options.bounce_bytes);
  // All others have come as envelopes only, and later messages are matched at once.
  const uint64_t last = pair.a.send(sent, 2);
  Bytes got(sent.size());
  const uint64_t receive = pair.b.receive(got, 2);
  ASSERT_TRUE(pair.run_until([&] { return pair.a.is_done(last) && pair.b.is_done(receive); }));
  EXPECT_TRUE(got == sent);
  pair.b.lane.drop_unexpected(1, ~uint64_t{0});
  EXPECT_TRUE(pair.run_until([&] { return pair.a.path->is_flushed(); }));
  EXPECT_FALSE(pair.b.lane.find_unexpected(0, kAny));
}

TEST(StreamLane, AMessageThatIsTooLongIsTruncated) {
  Pair pair;
  const Bytes sent = random_bytes(12'000'000, 1);
  Bytes got(1000, std::byte{7});
  const uint64_t send = pair.a.send(sent, 1);
  const uint64_t receive = pair.b.receive(got, 1);
  ASSERT_TRUE(pair.run_until([&] { return pair.a.is_done(send) && pair.b.is_done(receive); }));
  EXPECT_EQ(pair.b.outcome(receive)->status, StreamStatus::kTruncated);
  EXPECT_EQ(pair.b.outcome(receive)->length, sent.size());
  EXPECT_TRUE(got == Bytes(1000, std::byte{7}));
}

TEST(StreamLane, ACancelledReceiveIsNotWrittenToAnyMore) {
  Pair pair;
  const Bytes sent = random_bytes(40'000'000, 1);
  Bytes got(sent.size());
  const uint64_t receive = pair.b.receive(got, 1);
  const uint64_t send = pair.a.send(sent, 1);
  ASSERT_TRUE(pair.run_until([&] { return got.front() == sent.front() || got[9] == sent[9]; }));
  EXPECT_FALSE(pair.b.lane.take_back(Side::request(receive)));
  ASSERT_FALSE(pair.b.is_done(receive));
  pair.b.lane.cancel(Side::request(receive));
  EXPECT_EQ(pair.b.outcome(receive)->status, StreamStatus::kCancelled);
  const Bytes then = got;
  ASSERT_TRUE(pair.run_until([&] { return pair.a.is_done(send); }));
  EXPECT_TRUE(got == then);
  // One that has no message yet can be taken back.
  const uint64_t other = pair.b.receive(got, 2);
  EXPECT_TRUE(pair.b.lane.take_back(Side::request(other)));
  EXPECT_EQ(pair.b.outcome(other)->status, StreamStatus::kCancelled);
  pair.b.lane.cancel(Side::request(other));
  EXPECT_EQ(pair.b.lane.find_unexpected(0, kAny), std::nullopt);
}

// A receive from any rank may have got a message elsewhere.
TEST(StreamLane, AReceiveThatMayNotHaveAMessageLeavesItToTheNext) {
  for (const bool is_early : {false, true}) {
    Pair pair;
    uint64_t refused = 0;
    pair.b.lane.on_match([&](void* request) { return request != Side::request(refused); });
    const Bytes sent = random_bytes(10, 1);
    Bytes untouched(10, std::byte{7});
    Bytes got(10);
    const auto receive_both = [&] {
      refused = pair.b.last + 1;
      pair.b.receive(untouched, 1);
      return pair.b.receive(got, 1);
    };
    uint64_t receive = is_early ? receive_both() : 0;
    pair.a.send(sent, 1);
    if (!is_early) {
      ASSERT_TRUE(
          pair.run_until([&] { return pair.b.lane.find_unexpected(1, ~uint64_t{0}).has_value(); }));
      receive = receive_both();
    }
    ASSERT_TRUE(pair.run_until([&] { return pair.b.is_done(receive); }));
    ASSERT_TRUE(pair.b.is_done(refused));
    EXPECT_EQ(pair.b.outcome(refused)->status, StreamStatus::kCancelled);
    EXPECT_TRUE(untouched == Bytes(10, std::byte{7}));
    EXPECT_TRUE(got == sent);
  }
}

TEST(StreamLane, ShortSendsAreCopied) {
  Pair pair;
  Bytes sent = random_bytes(5000, 1);
  const Bytes as_sent = sent;
  const uint64_t send = pair.a.send(sent, 1);
  EXPECT_TRUE(pair.a.is_done(send));
  std::ranges::fill(sent, std::byte{0});
  Bytes got(5000);
  const uint64_t receive = pair.b.receive(got, 1);
  ASSERT_TRUE(pair.run_until([&] { return pair.b.is_done(receive); }));
  EXPECT_TRUE(got == as_sent);
}

TEST(StreamLane, ClosingAPathEndsWhatIsInProgress) {
  Pair pair;
  const Bytes sent = random_bytes(40'000'000, 1);
  Bytes got(sent.size());
  const uint64_t send = pair.a.send(sent, 1);
  const uint64_t receive = pair.b.receive(got, 1);
  const uint64_t waiting = pair.b.receive(got, 2);
  ASSERT_TRUE(pair.run_until([&] { return got.front() == sent.front() || got[9] == sent[9]; }));
  pair.a.lane.close(*pair.a.path);
  EXPECT_EQ(pair.a.outcome(send)->status, StreamStatus::kPathClosed);
  pair.b.lane.close(*pair.b.path);
  EXPECT_EQ(pair.b.outcome(receive)->status, StreamStatus::kPathClosed);
  EXPECT_FALSE(pair.b.is_done(waiting));
  pair.b.lane.cancel(Side::request(waiting));
  // The next epoch has nothing to do with it.
  pair.open(8);
  const uint64_t again = pair.a.send(sent, 3);
  const uint64_t other = pair.b.receive(got, 3);
  ASSERT_TRUE(pair.run_until([&] { return pair.a.is_done(again) && pair.b.is_done(other); }));
  EXPECT_TRUE(got == sent);
}

TEST(StreamLane, AByeComesAfterAllMessages) {
  Pair pair;
  std::deque<Bytes> sent;
  for (uint64_t i = 0; i < 20; ++i) pair.a.send(sent.emplace_back(random_bytes(100'000, i)), i);
  pair.a.path->say_bye();
  ASSERT_TRUE(pair.run_until([&] { return pair.b.path->has_left(); }));
  ASSERT_TRUE(pair.run_until([&] { return pair.a.path->is_flushed(); }));
  pair.a.lane.close(*pair.a.path);
  for (uint64_t i = 0; i < 20; ++i) {
    Bytes got(100'000);
    const uint64_t receive = pair.b.receive(got, i);
    ASSERT_TRUE(pair.b.is_done(receive)) << i;
    EXPECT_TRUE(got == sent[i]);
  }
}

TEST(StreamLane, ManyPathsShareTheReceives) {
  constexpr int kSenders = 5;
  Side b(100);
  std::vector<std::unique_ptr<Side>> senders;
  for (uint64_t i = 0; i < kSenders; ++i) {
    Side& side = *senders.emplace_back(std::make_unique<Side>(i + 1));
    side.path = &side.lane.open({b.self, 1, {{kLoopback, b.port}}, true});
    b.lane.open({side.self, 1, {}, false});
  }
  std::deque<Bytes> got;
  std::vector<uint64_t> receives;
  for (int i = 0; i < kSenders * 50; ++i) {
    receives.push_back(b.receive(got.emplace_back(70'000), 0, kAny));
  }
  std::deque<Bytes> sent;
  for (int i = 0; i < 50; ++i) {
    for (auto& side : senders) {
      sent.push_back(random_bytes(static_cast<size_t>(1000 * i + 4), side->self.process));
      side->send(sent.back(), side->self.process);
    }
  }
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (b.outcomes.size() < receives.size() && std::chrono::steady_clock::now() < give_up) {
    for (auto& side : senders) side->lane.progress();
    b.lane.progress();
  }
  std::map<uint64_t, size_t> from;  // how many came from each
  for (size_t i = 0; i < receives.size(); ++i) {
    const auto outcome = b.outcome(receives[i]);
    ASSERT_TRUE(outcome);
    const size_t number = from[outcome->tag]++;
    const Bytes& original = sent[number * kSenders + outcome->tag - 1];
    ASSERT_EQ(outcome->length, original.size());
    EXPECT_TRUE(std::equal(original.begin(), original.end(), got[i].begin()));
  }
  EXPECT_EQ(from.size(), kSenders);
}

}  // namespace
}  // namespace q7x2::stream_test
