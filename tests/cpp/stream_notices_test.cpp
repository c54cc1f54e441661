// Notices between two lanes: texts that no receive waits for, in order with the messages of tasks.
#include <deque>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stream_pair.h"

namespace q7x2::stream_test {
namespace {

using Turn = StreamNotice::Turn;

constexpr uint64_t kTopic = 3;
constexpr uint64_t kAll = 0;  // mask: any tag

/// A pair whose second side writes down what it hears.
struct Talk {
  Talk() {
    pair.b.lane.on_notice(kTopic, [this](StreamNotice notice) {
      heard.push_back(std::move(notice));
      is_done.push_back(pair.b.is_done(awaited));
    });
  }
  void tell(const std::string& text, uint64_t topic = kTopic) {
    pair.a.lane.notify(*pair.a.path, topic, text);
  }
  bool run_until_heard(size_t count) {
    return pair.run_until([&] { return heard.size() >= count; });
  }

  Pair pair;
  std::vector<StreamNotice> heard;
  uint64_t awaited = 0;       // a receive
  std::vector<bool> is_done;  // that receive, when the notice was heard
};

std::string text_of(size_t size) {
  const Bytes bytes = random_bytes(size, size);
  return {reinterpret_cast<const char*>(bytes.data()), size};
}

TEST(StreamNotice, TextsOfAllLengthsComeOnceAndInOrder) {
  Talk talk;
  const std::vector<size_t> sizes{0, 1, 20, 4096, 4097, 300'000, 12'000'000, 5};
  for (const size_t size : sizes) talk.tell(text_of(size));
  ASSERT_TRUE(talk.run_until_heard(sizes.size()));
  ASSERT_TRUE(talk.pair.run_until([&] { return talk.pair.a.path->is_flushed(); }));
  std::vector<size_t> in_order;
  for (const StreamNotice& notice : talk.heard) {
    EXPECT_EQ(notice.process, talk.pair.a.self.process);
    EXPECT_EQ(notice.topic, kTopic);
    EXPECT_TRUE(notice.text == text_of(notice.text.size()));
    if (notice.turn != Turn::kEarly) in_order.push_back(notice.text.size());
  }
  EXPECT_EQ(in_order, sizes);
}

TEST(StreamNotice, ReceivesDoNotGetThem) {
  Talk talk;
  Bytes got(100);
  const uint64_t receive = talk.pair.b.receive(got, kTopic, kAll);
  talk.tell("no receive gets this");
  talk.tell("nobody hears this", kTopic + 1);
  ASSERT_TRUE(talk.run_until_heard(1));
  const Bytes sent = random_bytes(100, 1);
  talk.pair.a.send(sent, kTopic);
  ASSERT_TRUE(talk.pair.run_until([&] { return talk.pair.b.is_done(receive); }));
  EXPECT_TRUE(got == sent);
  EXPECT_EQ(talk.pair.b.lane.find_unexpected(0, kAll), std::nullopt);
  EXPECT_EQ(talk.heard.size(), 1U);
  EXPECT_EQ(talk.heard.front().turn, Turn::kInOrder);
}

TEST(StreamNotice, OneThatOvertakesAMessageComesAgainAfterIt) {
  Talk talk;
  const Bytes sent = random_bytes(60'000'000, 1);
  Bytes got(sent.size());
  talk.awaited = talk.pair.b.receive(got, 1);
  talk.pair.a.send(sent, 1);
  talk.tell("after the message");
  ASSERT_TRUE(talk.run_until_heard(2));
  EXPECT_EQ(talk.heard[0].turn, Turn::kEarly);
  EXPECT_FALSE(talk.is_done[0]);
  EXPECT_EQ(talk.heard[1].turn, Turn::kAgain);
  EXPECT_TRUE(talk.is_done[1]) << "the message must be whole";
  EXPECT_EQ(talk.heard[0].text, talk.heard[1].text);
  // The next one finds nothing that is missing.
  talk.tell("once");
  ASSERT_TRUE(talk.run_until_heard(3));
  EXPECT_EQ(talk.heard[2].turn, Turn::kInOrder);
}

TEST(StreamNotice, AMessageThatNobodyWantsHoldsNoneUp) {
  Talk talk;
  const Bytes sent = random_bytes(60'000'000, 1);  // more than comes unasked
  talk.pair.a.send(sent, 1);
  talk.tell("after what can come of it");
  ASSERT_TRUE(talk.pair.run_until(
      [&] { return !talk.heard.empty() && talk.heard.back().turn != Turn::kEarly; }));
}

TEST(StreamNotice, WhenAPathIsClosedNothingIsMissingAnyMore) {
  Talk talk;
  const Bytes sent = random_bytes(60'000'000, 1);
  Bytes got(sent.size());
  talk.awaited = talk.pair.b.receive(got, 1);
  talk.pair.a.send(sent, 1);
  talk.tell("early");
  ASSERT_TRUE(talk.run_until_heard(1));
  ASSERT_EQ(talk.heard.front().turn, Turn::kEarly);
  talk.pair.b.lane.close(*talk.pair.b.path);
  ASSERT_EQ(talk.heard.size(), 2U);
  EXPECT_EQ(talk.heard.back().turn, Turn::kAgain);
  EXPECT_TRUE(talk.is_done.back()) << "the receive has failed";
  // Nobody hears it, and nothing happens.
  talk.pair.a.lane.close(*talk.pair.a.path);
}

TEST(StreamNotice, EachComesOnceOverConnectionsThatBreak) {
  Talk talk;
  talk.pair.proxy.bytes_between_cuts = 60'000;
  std::deque<Bytes> sent;
  std::deque<Bytes> got;
  std::vector<uint64_t> receives;
  constexpr size_t kCount = 200;
  for (uint64_t i = 0; i < kCount; ++i) {
    receives.push_back(talk.pair.b.receive(got.emplace_back(20'000), i));
    talk.pair.a.send(sent.emplace_back(random_bytes(20'000, i)), i);
    talk.tell(std::to_string(i));
  }
  const auto in_order = [&] {
    std::vector<std::string> texts;
    for (const StreamNotice& each : talk.heard) {
      if (each.turn != Turn::kEarly) texts.push_back(each.text);
    }
    return texts;
  };
  ASSERT_TRUE(talk.pair.run_until([&] { return in_order().size() >= kCount; }));
  EXPECT_GT(talk.pair.proxy.cuts, 0);
  std::vector<std::string> expected;
  for (size_t i = 0; i < kCount; ++i) {
    expected.push_back(std::to_string(i));
    EXPECT_TRUE(talk.pair.b.is_done(receives[i]) && got[i] == sent[i]) << i;
  }
  EXPECT_EQ(in_order(), expected);
}

}  // namespace
}  // namespace q7x2::stream_test
