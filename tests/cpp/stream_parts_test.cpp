// The parts of a StreamLane by themselves: ranges, frames, both sides of a path, its policies.
#include <cstring>
#include <deque>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "base/error.h"
#include "transport/stream/connection_count.h"
#include "transport/stream/delivery_rate.h"
#include "transport/stream/frame.h"
#include "transport/stream/incoming_messages.h"
#include "transport/stream/outgoing_messages.h"
#include "transport/stream/pacer.h"
#include "transport/stream/range_set.h"

namespace q7x2 {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(RangeSet, IsASetOfNumbers) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    RangeSet set;
    std::set<uint64_t> numbers;
    for (int i = 0; i < 30; ++i) {
      const uint64_t first = random() % 100;
      const ByteRange range{first, first + random() % 12};
      const size_t before = numbers.size();
      for (uint64_t each = range.first; each < range.last; ++each) numbers.insert(each);
      EXPECT_EQ(set.add(range), numbers.size() - before);
      EXPECT_EQ(set.covered(), numbers.size());
      EXPECT_TRUE(set.contains(range));
    }
    for (uint64_t each = 0; each < 120; ++each) {
      EXPECT_EQ(set.contains({each, each + 1}), numbers.contains(each));
      const ByteRange around = set.around(each);
      EXPECT_EQ(around.size() > 0, numbers.contains(each));
      for (uint64_t i = around.first; i < around.last; ++i) EXPECT_TRUE(numbers.contains(i));
    }
    for (size_t i = 1; i < set.ranges().size(); ++i) {
      EXPECT_LT(set.ranges()[i - 1].last, set.ranges()[i].first);
    }
    uint64_t missing = 0;
    while (numbers.contains(missing)) ++missing;
    EXPECT_EQ(set.first_missing(), missing);
  }
}

bool is_frame(const Frame& frame) {
  try {
    return Frame::decode(frame.encode()) == frame;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    return false;
  }
}

TEST(Frame, ImpossibleOnesAreRefused) {
  const uint64_t most = Frame::kMaxMessage;
  const auto envelope = FrameKind::kEnvelope;
  EXPECT_TRUE(is_frame({envelope, 0, 3, 5, most, 7}));
  EXPECT_TRUE(is_frame({envelope, 9, 3, 5, 9, 9}));
  EXPECT_FALSE(is_frame({envelope, 0, 3, 5, most + 1, 7}));
  EXPECT_FALSE(is_frame({envelope, 0, 3, 5, 6, 7}));
  EXPECT_FALSE(is_frame({envelope, 8, 3, 5, 9, 9}));
  EXPECT_FALSE(is_frame({envelope, 70'000, 3, 5, 70'000, 70'000}));
  const auto chunk = FrameKind::kChunk;
  EXPECT_TRUE(is_frame({chunk, 10, 3, 90, 100, 100}));
  EXPECT_FALSE(is_frame({chunk, 10, 3, 91, 100, 100}));
  EXPECT_FALSE(is_frame({chunk, 0, 3, 90, 100, 100}));
  EXPECT_FALSE(is_frame({chunk, 10, 3, ~uint64_t{0} - 4, 100, 100}));
  EXPECT_FALSE(is_frame({chunk, 10, 3, 90, 100, 101}));
  EXPECT_FALSE(is_frame({chunk, (1 << 20) + 1, 3, 0, most, 0}));
  EXPECT_TRUE(is_frame({FrameKind::kAck, 48, 1, 2, 3, 4}));
  EXPECT_FALSE(is_frame({FrameKind::kAck, 47, 1, 2, 3, 4}));
  EXPECT_FALSE(is_frame({FrameKind::kAck, 24 * 513, 1, 2, 3, 4}));
  EXPECT_TRUE(is_frame({FrameKind::kGrant, 0, 1}));
  EXPECT_FALSE(is_frame({FrameKind::kGrant, 1, 1}));
  EXPECT_FALSE(is_frame({FrameKind::kBye, 0, 0, 0, 1}));
  EXPECT_FALSE(is_frame({static_cast<FrameKind>(0)}));
  EXPECT_TRUE(is_frame({FrameKind::kNotice, 0, 1, 2, Frame::kMaxNotice, 7}));
  EXPECT_FALSE(is_frame({FrameKind::kNotice, 0, 1, 2, Frame::kMaxNotice + 1, 7}));
  EXPECT_FALSE(is_frame({static_cast<FrameKind>(9)}));
}

TEST(Frame, RangesOfAnAckAreChecked) {
  const std::vector<AckRange> ranges{{1, {0, 5}}, {7, {6, Frame::kMaxMessage}}};
  EXPECT_EQ(decode_ranges(encode_ranges(ranges)), ranges);
  EXPECT_THROW(decode_ranges(encode_ranges(ranges).substr(1)), Error);
  for (const ByteRange wrong : {ByteRange{5, 5}, {6, 5}, {0, Frame::kMaxMessage + 1}}) {
    EXPECT_THROW(decode_ranges(encode_ranges(std::vector<AckRange>{{1, wrong}})), Error);
  }
}

// ----------------------------------------------------------------------------------- the receiver

struct Receiver {
  std::map<void*, StreamStatus> outcomes;
  StreamMatcher matcher{[this](void* request, StreamStatus status, size_t, uint64_t) {
    EXPECT_TRUE(outcomes.emplace(request, status).second) << "completed twice";
  }};
  IncomingMessages incoming{matcher, 1000, [](const IncomingMessage&) {}, [] {},
                            [](const StreamNotice&) {}};

  void envelope(uint64_t number, uint64_t tag, uint64_t total, uint64_t eager) {
    incoming.on_envelope({FrameKind::kEnvelope, 0, number, tag, total, eager}, "");
  }
  /// Bytes that are their own offsets.
  void chunk(uint64_t number, ByteRange range, uint64_t total, uint64_t eager) {
    const IncomingMessages::Body body =
        incoming.place({FrameKind::kChunk, static_cast<uint32_t>(range.size()), number, range.first,
                        total, eager});
    for (uint64_t i = 0; body.to != nullptr && i < range.size(); ++i) {
      body.to[i] = static_cast<std::byte>(range.first + i);
    }
    incoming.on_chunk(body);
  }
  void* receive(std::vector<std::byte>& data, uint64_t tag) {
    void* const request = &data;
    matcher.receive(request, tag, ~uint64_t{0}, data.data(), data.size());
    return request;
  }
};

TEST(IncomingMessages, ChunksMayOvertakeTheirEnvelopes) {
  Receiver receiver;
  std::vector<std::byte> first(100);
  std::vector<std::byte> second(100);
  void* const one = receiver.receive(first, 5);
  void* const two = receiver.receive(second, 5);
  receiver.chunk(1, {50, 100}, 100, 100);
  receiver.chunk(1, {0, 60}, 100, 100);
  receiver.envelope(1, 5, 100, 100);
  EXPECT_TRUE(receiver.outcomes.empty()) << "message 0 comes first";
  receiver.envelope(0, 5, 100, 100);
  EXPECT_TRUE(receiver.outcomes.contains(two));
  EXPECT_FALSE(receiver.outcomes.contains(one));
  receiver.chunk(0, {0, 100}, 100, 100);
  EXPECT_TRUE(receiver.outcomes.contains(one));
  for (size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(first[i], static_cast<std::byte>(i));
    EXPECT_EQ(second[i], static_cast<std::byte>(i));
  }
  EXPECT_EQ(receiver.incoming.take_ack().frame.message, 2);
}

TEST(IncomingMessages, RefusesWhatDoesNotFitItsState) {
  Receiver receiver;
  receiver.envelope(0, 1, 2000, 600);
  EXPECT_THROW(receiver.envelope(1, 1, 500, 401), Error) << "more than the bounce memory";
  EXPECT_THROW(receiver.chunk(0, {590, 610}, 2000, 600), Error) << "nobody granted it";
  EXPECT_THROW(receiver.chunk(0, {0, 10}, 2001, 600), Error) << "two lengths";
  EXPECT_THROW(receiver.chunk(2 + IncomingMessages::kMostAhead, {0, 1}, 1, 1), Error);
  std::vector<std::byte> data(2000);
  receiver.receive(data, 1);
  const StreamTime now = StreamClock::now();
  EXPECT_EQ(receiver.incoming.take_grants(seconds(1), now), std::vector<uint64_t>{0});
  EXPECT_TRUE(receiver.incoming.take_grants(seconds(1), now + milliseconds(999)).empty());
  // Perhaps it was lost.
  EXPECT_EQ(receiver.incoming.take_grants(seconds(1), now + seconds(2)), std::vector<uint64_t>{0});
  receiver.chunk(0, {590, 610}, 2000, 600);
  EXPECT_FALSE(receiver.incoming.has_grants()) << "it was not lost";
  receiver.envelope(1, 1, 500, 401);  // there is room now
}

TEST(IncomingMessages, DuplicatesAreAcknowledgedAgain) {
  Receiver receiver;
  std::vector<std::byte> data(100);
  void* const request = receiver.receive(data, 1);
  receiver.envelope(0, 1, 100, 100);
  receiver.chunk(0, {0, 40}, 100, 100);
  EXPECT_EQ(receiver.incoming.take_ack().ranges, (std::vector<AckRange>{{0, {0, 40}}}));
  EXPECT_FALSE(receiver.incoming.has_news());
  receiver.chunk(0, {0, 40}, 100, 100);
  EXPECT_EQ(receiver.incoming.take_ack().ranges, (std::vector<AckRange>{{0, {0, 40}}}));
  receiver.chunk(0, {40, 100}, 100, 100);
  EXPECT_TRUE(receiver.outcomes.contains(request));
  std::ranges::fill(data, std::byte{255});
  receiver.chunk(0, {0, 100}, 100, 100);  // it is over: its memory is somebody else's
  EXPECT_EQ(data.front(), std::byte{255});
  EXPECT_EQ(receiver.incoming.take_ack().frame.message, 1);
}

// ------------------------------------------------------------------------------------- the sender

struct Sender {
  explicit Sender(size_t bounce = 1 << 30) { outgoing.set_bounce(bounce); }

  void send(size_t length) {
    data.emplace_back(length);
    outgoing.send(&data.back(), 1, data.back().data(), length);
    while (outgoing.take_envelope(1, 0, now)) {
    }
  }
  std::optional<Frame> chunk(uint64_t connection, size_t most) {
    const auto piece = outgoing.take_chunk(connection, most, false, now);
    return piece ? std::optional(piece->frame) : std::nullopt;
  }
  void acknowledge(const std::vector<AckRange>& ranges, uint64_t envelopes) {
    outgoing.acknowledge({FrameKind::kAck, 0, 0, 0, envelopes, 0}, ranges, now);
  }

  StreamTime now = StreamClock::now();
  StreamOptions options = [] {
    StreamOptions it;
    it.copied_message = 0;
    return it;
  }();
  std::deque<std::vector<std::byte>> data;
  std::set<void*> complete;
  std::set<uint64_t> released;
  OutgoingMessages outgoing{options,
                            [this](void* request, StreamStatus, size_t, uint64_t) {
                              EXPECT_TRUE(complete.insert(request).second);
                            },
                            [this](uint64_t number) { released.insert(number); }};
};

TEST(OutgoingMessages, AChunkThatIsOvertakenGoesAgainElsewhere) {
  Sender sender;
  sender.send(300'000);
  const uint64_t size = 300'000;
  sender.outgoing.rtt().add(milliseconds(100), sender.now);
  ASSERT_EQ(sender.chunk(1, 100'000)->value, 0);
  sender.now += milliseconds(40);
  ASSERT_EQ(sender.chunk(2, 100'000)->value, 100'000);
  sender.now += milliseconds(100);
  sender.acknowledge({{0, {100'000, 200'000}}}, 1);
  // It is late, but as long as there is something new, that goes first.
  EXPECT_EQ(sender.chunk(1, 50'000)->value, 200'000);
  EXPECT_EQ(sender.chunk(1, 50'000)->value, 250'000);
  EXPECT_FALSE(sender.chunk(1, 100'000)) << "not on the connection where it is late";
  EXPECT_EQ(sender.chunk(2, 60'000)->value, 0);
  EXPECT_EQ(sender.chunk(2, 60'000)->bytes, 40'000);
  EXPECT_FALSE(sender.chunk(2, 60'000));
  EXPECT_EQ(sender.outgoing.chunks_again(), 2);
  sender.acknowledge({{0, {0, size}}}, 1);
  EXPECT_EQ(sender.complete.size(), 1);
  EXPECT_EQ(sender.released, std::set<uint64_t>{0});
  EXPECT_TRUE(sender.outgoing.is_flushed());
}

TEST(OutgoingMessages, IfNothingIsAcknowledgedSomeGoAgainEverMoreRarely) {
  Sender sender;
  sender.outgoing.rtt().add(milliseconds(100), sender.now);
  sender.send(50'000);
  while (sender.chunk(1, 1000)) {
  }
  std::vector<size_t> again;
  for (int i = 0; i < 40; ++i) {
    sender.now += milliseconds(50);
    sender.outgoing.find_late(sender.now);
    size_t count = 0;
    while (sender.chunk(2, 1000)) ++count;
    again.push_back(count);
    EXPECT_GT(*sender.outgoing.due(), sender.now);
  }
  const auto total = std::accumulate(again.begin(), again.end(), size_t{0});
  EXPECT_GE(total, 4);
  EXPECT_LE(total, 16);
  EXPECT_TRUE(sender.outgoing.has_late_envelopes());
}

TEST(OutgoingMessages, ABrokenConnectionLosesNothing) {
  Sender sender;
  sender.send(40'000);
  EXPECT_EQ(sender.chunk(1, 10'000)->value, 0);
  EXPECT_EQ(sender.chunk(2, 30'000)->value, 10'000);
  sender.outgoing.lose(1);
  ASSERT_TRUE(sender.outgoing.has_late_envelopes());
  EXPECT_EQ(sender.outgoing.take_late_envelope(2, sender.now)->frame.kind, FrameKind::kEnvelope);
  EXPECT_EQ(sender.chunk(2, 30'000)->value, 0);
  EXPECT_FALSE(sender.chunk(2, 30'000));
}

TEST(OutgoingMessages, SendsNoMoreThanTheBounceMemoryUnasked) {
  Sender sender(100'000);
  sender.send(60'000);
  sender.send(60'000);
  sender.send(30'000);
  uint64_t bytes = 0;
  while (const auto frame = sender.chunk(1, 7000)) bytes += frame->bytes;
  EXPECT_EQ(bytes, 60'000 + 20'000 + 10'000);
  sender.outgoing.grant(1);
  while (const auto frame = sender.chunk(1, 7000)) bytes += frame->bytes;
  EXPECT_EQ(bytes, 60'000 + 60'000 + 10'000);
  EXPECT_THROW(sender.outgoing.grant(3), Error);
  // What the receiver says was released may be used again.
  sender.outgoing.acknowledge({FrameKind::kAck, 0, 0, 90'000, 3, 0}, {}, sender.now);
  sender.send(90'000);
  while (const auto frame = sender.chunk(1, 7000)) bytes += frame->bytes;
  EXPECT_EQ(bytes, 60'000 + 60'000 + 10'000 + 90'000);
}

TEST(OutgoingMessages, RefusesAcksOfWhatWasNeverSent) {
  Sender sender;
  sender.send(1000);
  EXPECT_THROW(sender.acknowledge({{1, {0, 1}}}, 1), Error);
  EXPECT_THROW(sender.acknowledge({{0, {0, 1001}}}, 1), Error);
  EXPECT_THROW(sender.acknowledge({}, 2), Error);
  const auto ack = [&](uint64_t below, uint64_t released, uint64_t envelopes) {
    sender.outgoing.acknowledge({FrameKind::kAck, 0, below, released, envelopes, 0}, {},
                                sender.now);
  };
  EXPECT_THROW(ack(1, 0, 0), Error);
  EXPECT_THROW(ack(0, 1001, 1), Error);
  EXPECT_TRUE(sender.complete.empty());
  ack(1, 1000, 1);
  EXPECT_EQ(sender.complete.size(), 1);
}

// --------------------------------------------------------------------------------------- policies

TEST(ConnectionCount, BeginsWithMoreTheFartherTheHostIs) {
  ConnectionCount near(2, 64);
  near.start(milliseconds(0));
  EXPECT_EQ(near.wanted(), 2);
  ConnectionCount far(2, 64);
  far.start(milliseconds(30));
  EXPECT_EQ(far.wanted(), 22);
  far.start(milliseconds(500));
  EXPECT_EQ(far.wanted(), 64);
}

TEST(ConnectionCount, GrowsWhileThePathGetsFaster) {
  // Each connection carries 10 MB/s, and the line 95.
  ConnectionCount count(2, 64);
  StreamTime now = StreamClock::now();
  int most = 0;
  for (int i = 0; i < 300; ++i) {
    now += milliseconds(50);
    const auto bytes = static_cast<uint64_t>(std::min(95, count.wanted() * 10) * 50'000);
    count.observe(bytes, milliseconds(50), count.wanted(), milliseconds(1), now);
    most = std::max(most, count.wanted());
  }
  EXPECT_GE(count.wanted(), 9);
  EXPECT_LE(count.wanted(), 14);
  EXPECT_LE(most, 21);
  count.rest(now + seconds(59));
  EXPECT_GE(count.wanted(), 9);
  for (int i = 1; i < 10; ++i) count.rest(now + i * seconds(61));
  EXPECT_EQ(count.wanted(), 2);
}

TEST(DeliveryRate, BytesThatWaitedForARepairAreNoFastLine) {
  RttEstimate rtt;
  DeliveryRate rate;
  const StreamTime start = StreamClock::now();
  const auto at = [&](int ms) { return start + milliseconds(ms); };
  rtt.add(milliseconds(100), start);
  EXPECT_EQ(rate.best(), 0);
  // 2 MB per RTT of 100 ms.
  rate.add({0, at(0), at(-100), at(0)}, 2'000'000, at(100));
  EXPECT_NEAR(rate.best(), 20e6, 1);
  EXPECT_EQ(rate.limit(rtt), 2 * 2'000'000 + (512 << 10));
  // 3 MB come within 10 ms, which were sent within 150.
  rate.add({2'000'000, at(200), at(50), at(200)}, 5'000'000, at(210));
  EXPECT_NEAR(rate.best(), 20e6, 1);
  rate.add({5'000'000, at(210), at(210), at(211)}, 8'000'000, at(310));
  EXPECT_NEAR(rate.best(), 30e6, 1);
  // It is that of the last seconds.
  rate.add({8'000'000, at(30'000), at(30'000), at(30'000)}, 8'100'000, at(30'100));
  rate.add({8'100'000, at(60'000), at(60'000), at(60'000)}, 8'200'000, at(60'100));
  EXPECT_NEAR(rate.best(), 1e6, 1);
}

TEST(Pacer, SpreadsWhatIsSent) {
  Pacer pacer;
  StreamTime now = StreamClock::now();
  size_t sent = 0;
  pacer.advance(10e6, now);
  for (int i = 0; i < 1000; ++i) {
    now += milliseconds(1);
    pacer.advance(10e6, now);
    while (pacer.may_send()) {
      pacer.spend(1000);
      sent += 1000;
    }
  }
  // A second's worth, and at most one burst.
  EXPECT_GE(sent, 10'000'000U);
  EXPECT_LE(sent, 10'000'000U + (1 << 20) + 1000);
}

}  // namespace
}  // namespace q7x2
