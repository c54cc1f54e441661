// IncomingMessages: the receiving side of a path. Puts chunks where they belong, gives messages to
// the matcher in the order of their numbers, and says what must be acknowledged.
//
//   a message that a receive has      chunks go straight to its place
//   one that nobody has asked for     its eager bytes go to bounce memory, which is bounded
//   one that is over, or twice there  read and dropped, and acknowledged again
//   a notice                          goes to a text of its own, and then to whom it concerns
//
// A sender counts the eager bytes that it has sent, and is told how many of them were *released*:
// belong to messages that a receive has, or that were dropped. So it knows what it may still send.
// Beyond that a message waits for a grant, which it gets when it is matched.
//
// What a frame says is checked against the state here: Error(kMismatch) ends its connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "transport/stream/frame.h"
#include "transport/stream/incoming_message.h"
#include "transport/stream/stream_matcher.h"
#include "transport/stream/stream_options.h"

namespace q7x2 {

class IncomingMessages final : public IncomingOwner {
 public:
  /// How far envelopes and chunks may be ahead of the first envelope that is missing.
  static constexpr uint64_t kMostAhead = 1 << 15;

  /// Where the body of a chunk goes.
  struct Body {
    std::shared_ptr<IncomingMessage> message;  ///< null: it is dropped
    uint64_t number = 0;
    ByteRange range;
    std::byte* to = nullptr;              ///< null: it is dropped
    std::shared_ptr<std::byte[]> bounce;  ///< keeps `to` alive
  };
  struct Ack {
    Frame frame;
    std::vector<AckRange> ranges;
    bool is_repeated =
        false;  ///< something came twice: an ack before this one was lost, or is late
  };

  /// `on_over`: connections that are reading into the message's place must not any more. `on_news`:
  /// there is something to acknowledge, or to grant. `on_notice`: one has come; without its sender.
  IncomingMessages(StreamMatcher& matcher, size_t bounce_bytes,
                   std::function<void(const IncomingMessage&)> on_over,
                   std::function<void()> on_news, std::function<void(StreamNotice)> on_notice)
      : matcher_(matcher),
        bounce_bytes_(bounce_bytes),
        on_over_(std::move(on_over)),
        on_news_(std::move(on_news)),
        on_notice_(std::move(on_notice)) {}
  IncomingMessages(const IncomingMessages&) = delete;
  IncomingMessages& operator=(const IncomingMessages&) = delete;
  ~IncomingMessages() { close(); }

  void on_envelope(const Frame& frame, std::string_view body);
  Body place(const Frame& chunk);
  /// All of the body is there.
  void on_chunk(const Body& body);

  /// What an ack would tell. `is_urgent`: somebody waits for it.
  bool has_news() const { return has_news_; }
  bool is_urgent() const { return is_urgent_; }
  uint64_t unacknowledged_bytes() const { return news_bytes_; }
  Ack take_ack();
  /// Messages whose rest may come: those that nobody was told yet, and those of which nothing has
  /// come although it was told `patience` ago.
  std::vector<uint64_t> take_grants(StreamDuration patience, StreamTime now);
  bool has_grants() const { return !grants_.empty(); }
  /// A connection broke, and acks and grants may have been lost with it.
  void repeat();
  /// Whether a receive has a message that is not whole.
  bool is_expecting() const;
  /// Tells again of notices that came early and are in order now.
  void settle_notices();
  /// Receives that have a message fail, unless all of it is here.
  void close();

  void on_matched(IncomingMessage& message) override;
  void on_dropped(IncomingMessage& message) override;

 private:
  using News = std::map<uint64_t, RangeSet>;  // what to acknowledge, by number

  IncomingMessage& message_of(const Frame& frame);
  void begin_notice(IncomingMessage& message);
  void finish(IncomingMessage& message);
  /// Whether everything of the path's first `count` messages is here that comes without a grant of
  /// this side, and all of those that a receive has.
  bool has_received(uint64_t count) const;
  void note_news();
  void release(const IncomingMessage& message);
  void tell(uint64_t number, ByteRange range);
  void add_ranges(std::vector<AckRange>& ranges, News::iterator news);
  /// All of it has arrived, or nobody wants it.
  void end(IncomingMessage& message);

  StreamMatcher& matcher_;
  const size_t bounce_bytes_;
  const std::function<void(const IncomingMessage&)> on_over_;
  const std::function<void()> on_news_;
  const std::function<void(StreamNotice)> on_notice_;
  std::map<uint64_t, std::shared_ptr<IncomingMessage>> messages_;  // by number
  uint64_t next_ = 0;      // the first envelope that is missing
  RangeSet done_;          // numbers of messages that have arrived whole, or were dropped
  uint64_t held_ = 0;      // eager bytes of messages that nobody has asked for
  uint64_t released_ = 0;  // eager bytes of all others, ever
  News news_;
  uint64_t news_bytes_ = 0;
  bool has_news_ = false;
  bool is_urgent_ = false;
  bool has_duplicates_ = false;
  std::deque<std::pair<uint64_t, StreamNotice>> early_;  // by number
  std::map<uint64_t, StreamTime> grants_;  // by number: when it was told; the epoch: not yet
};

}  // namespace q7x2
