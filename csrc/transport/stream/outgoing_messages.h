// OutgoingMessages: the sending side of a path. Says which envelope and which chunk goes next,
// keeps each until it is acknowledged, and gives it out again if it is late or its connection
// broke.
//
// A chunk is late if it was sent more than 1.25 RTT ago and chunks that were sent a quarter of an
// RTT after it have been acknowledged (RACK, RFC 8985, over all connections). If nothing at all is
// acknowledged any more, the oldest chunks go again after a time that doubles.
//
// A message that is short is copied, and its send is complete at once. A long one is sent from the
// caller's memory, and complete when all of it is acknowledged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string_view>

#include "transport/stream/delivery_rate.h"
#include "transport/stream/frame.h"
#include "transport/stream/pacer.h"
#include "transport/stream/range_set.h"
#include "transport/stream/rtt_estimate.h"
#include "transport/stream/stream_matcher.h"
#include "transport/stream/stream_options.h"

namespace q7x2 {

class OutgoingMessages {
 public:
  /// A frame that has bytes of a message behind it.
  struct Piece {
    Frame frame;
    const std::byte* data = nullptr;
  };

  /// `on_released`: nothing may refer to the memory of this message any more.
  OutgoingMessages(const StreamOptions& options, OnStreamComplete on_complete,
                   std::function<void(uint64_t number)> on_released)
      : options_(options),
        on_complete_(std::move(on_complete)),
        on_released_(std::move(on_released)) {}
  OutgoingMessages(const OutgoingMessages&) = delete;
  OutgoingMessages& operator=(const OutgoingMessages&) = delete;

  void send(void* request, uint64_t tag, const std::byte* data, size_t length);
  void notify(uint64_t topic, std::string_view text);
  /// A send that cannot be any more.
  void refuse(void* request, uint64_t tag) const {
    on_complete_(request, StreamStatus::kPathClosed, 0, tag);
  }
  /// What the receiver's bounce memory holds, as its hello says.
  void set_bounce(uint64_t bytes) { bounce_ = bytes; }

  /// The next envelope for `connection`, with its message inside if that has at most `room` bytes.
  std::optional<Piece> take_envelope(uint64_t connection, size_t room, StreamTime now);
  bool has_envelopes() const;
  /// An envelope that is late, which should go over another connection.
  std::optional<Piece> take_late_envelope(uint64_t connection, StreamTime now);
  bool has_late_envelopes() const { return !late_envelopes_.empty(); }
  /// The next chunk for `connection`, of at most `most` bytes. Short messages go first, and of long
  /// ones the oldest. A chunk that is late comes after those of its message that were never sent:
  /// as long as there are any, TCP's own repair is soon enough, and costs nothing. It goes to
  /// another connection than before, unless `is_only`.
  std::optional<Piece> take_chunk(uint64_t connection, size_t most, bool is_only, StreamTime now);
  /// Whether the line should take a chunk now.
  bool may_send(StreamTime now);
  /// Whether a connection with room would get something.
  bool has_chunks() const { return !again_.empty() || !short_.empty() || !long_.empty(); }

  /// Throw Error(kMismatch) for what cannot be.
  void acknowledge(const Frame& ack, std::span<const AckRange> ranges, StreamTime now);
  void grant(uint64_t number);
  /// What was sent over `connection` and is not acknowledged goes again.
  void lose(uint64_t connection);
  /// Finds what is late, which may be something from `due` on.
  void find_late(StreamTime now);
  std::optional<StreamTime> due() const;

  bool is_flushed() const { return outgoing_.empty(); }
  /// Bytes of messages that are not done, and one more for each of these.
  uint64_t unacknowledged_bytes() const;
  bool is_in_flight(uint64_t connection) const;
  size_t num_in_flight() const { return in_flight_.size(); }
  RttEstimate& rtt() { return rtt_; }
  const RttEstimate& rtt() const { return rtt_; }
  uint64_t acknowledged_bytes() const { return acknowledged_bytes_; }
  double rate() const { return rate_.best(); }
  uint64_t chunks_again() const { return chunks_again_; }
  /// All that is not complete fails.
  void close();

 private:
  struct Outgoing {
    uint64_t number = 0;
    uint64_t tag = 0;  // notices: the topic
    bool is_notice = false;
    const std::byte* data = nullptr;
    uint64_t total = 0;
    void* request = nullptr;  // null: complete for the caller
    std::unique_ptr<std::byte[]> copy;
    uint64_t eager = 0;
    uint64_t limit = 0;      // bytes that may be sent: eager, and all once it is granted
    uint64_t next = 0;       // the first byte that was never sent
    bool is_inside = false;  // its envelope
    bool is_done = false;
    RangeSet acknowledged;

    bool is_short() const { return total <= kShort; }
  };
  struct InFlight {
    uint64_t number = 0;
    ByteRange range;
    uint64_t connection = 0;
    StreamTime sent;
    bool was_late = false;
    DeliveryRate::Mark mark;
  };
  struct Envelope {
    uint64_t connection = 0;
    StreamTime sent;
    bool was_late = false;
  };
  static constexpr uint64_t kShort = 256 << 10;

  Outgoing& add(uint64_t tag, const void* data, size_t length);
  void copy(Outgoing& message);
  Outgoing* find(uint64_t number);
  static Piece envelope(const Outgoing& message);
  void acknowledge_envelopes(uint64_t below, StreamTime now);
  void finish_if_whole(Outgoing& message);
  void finish(Outgoing& message);
  void retire();
  void sweep(StreamTime now);
  void find_overtaken(StreamTime now);
  StreamTime patience_ends() const;
  void send_again(std::list<InFlight>::iterator late);
  /// The message that has bytes which were never sent and may be, and whose turn it is.
  Outgoing* next_fresh();
  Piece give(const Outgoing& message, ByteRange range, uint64_t connection, bool was_late,
             StreamTime now);
  std::optional<Piece> take_again(uint64_t connection, size_t most, bool is_only,
                                  const Outgoing* fresh, StreamTime now);

  const StreamOptions& options_;
  const OnStreamComplete on_complete_;
  const std::function<void(uint64_t)> on_released_;
  std::deque<Outgoing> outgoing_;  // all from the first that is not done
  uint64_t first_ = 0;             // its number
  uint64_t bounce_ = 0;
  uint64_t eager_bytes_ = 0;  // ever sent unasked
  uint64_t released_ = 0;     // released of these, by the receiver
  uint64_t copied_ = 0;       // bytes in copies

  uint64_t next_envelope_ = 0;      // the first that was never sent
  uint64_t arrived_envelopes_ = 0;  // all before it have arrived
  std::deque<Envelope> envelopes_;  // from there to `next_envelope_`
  std::set<uint64_t> late_envelopes_;

  // Numbers of messages with bytes that were never sent and may be.
  std::deque<uint64_t> short_;
  std::deque<uint64_t> long_;
  std::list<InFlight> in_flight_;  // in the order in which they were sent
  std::list<InFlight> again_;      // to be sent again
  uint64_t in_flight_bytes_ = 0;
  RttEstimate rtt_;
  DeliveryRate rate_;
  Pacer pacer_;
  StreamTime last_ack_;
  StreamTime newest_;         // when the last chunk that is acknowledged was sent
  StreamTime last_progress_;  // an acknowledgement, a probe, or the first that was sent
  int silent_checks_ = 0;     // since the last acknowledgement
  uint64_t acknowledged_bytes_ = 0;
  uint64_t chunks_again_ = 0;
};

}  // namespace q7x2
