// StreamPath: many TCP connections as one path between two processes.
//
//   control connections   the oldest, one of eight: envelopes, acks, grants, pings
//   bulk connections      all others: chunks; each gets only what its congestion window takes
//
// Which connection is which is each sender's own choice: a receiver takes every frame from every
// connection. With one connection only, it carries everything.
//
// A path that fails, because the other process gives no sign of life or does not keep the protocol,
// closes its connections first and then completes what is in progress with an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "transport/stream/connection_count.h"
#include "transport/stream/connection_pool.h"
#include "transport/stream/incoming_messages.h"
#include "transport/stream/outgoing_messages.h"
#include "transport/stream/stream_connection.h"
#include "transport/stream/stream_options.h"

namespace q7x2 {

using OnStreamNotice = std::function<void(StreamNotice)>;

class StreamPath final : public ConnectionOwner {
 public:
  struct Counts {
    uint64_t connections_made = 0;
    uint64_t connections_lost = 0;
    uint64_t bad_frames = 0;
    uint64_t chunks_again = 0;
    uint64_t bytes_acknowledged = 0;
  };

  /// `own`: this process. `key`: of messages to the other one. `on_dirty`: `progress` has something
  /// to do.
  StreamPath(EventLoop& loop, const StreamOptions& options, uint64_t own,
             const StreamTarget& target, const MessageKey& key, StreamMatcher& matcher,
             OnStreamComplete on_complete, OnStreamNotice on_notice,
             std::function<void(StreamPath&)> on_dirty);
  StreamPath(const StreamPath&) = delete;
  StreamPath& operator=(const StreamPath&) = delete;
  ~StreamPath() { close(); }

  const StreamTarget& target() const { return target_; }
  bool is_closed() const { return is_closed_; }
  /// Whether the other side must give signs of life: something that was sent is not acknowledged, a
  /// receive has a part of its message, or it is watched.
  bool is_busy() const {
    return !outgoing_.is_flushed() || incoming_.is_expecting() || (is_watched_ && !has_left_);
  }
  /// From now on the path fails if the other process ends or is silent, also if nothing is in
  /// progress.
  void watch();
  /// In messages, and one for a bye that is on its way.
  uint64_t unacknowledged_bytes() const;
  /// Why it failed; empty: it has not.
  const std::string& failure() const { return failure_; }
  enum class Fault : uint8_t {
    kEnded,     ///< nobody listens at the port of the other process any more
    kSilent,    ///< nothing has come for long
    kGivenUp,   ///< the other process says that it has given the path up
    kProtocol,  ///< what came cannot be
  };
  Fault fault() const { return fault_; }
  /// Whether there was a sign of life recently.
  bool is_heard() const { return !is_closed_ && pool_.is_heard(options_.now()); }
  /// The other side has said that it will send nothing more.
  bool has_left() const { return has_left_; }
  size_t num_connections() const { return pool_.all().size(); }
  /// One for each connection.
  std::vector<int> sockets() const;
  StreamDuration rtt() const { return outgoing_.rtt().smoothed(); }
  /// That of the line without queues; 0: not known.
  StreamDuration shortest_rtt() const { return outgoing_.rtt().shortest(); }
  /// Bytes per second, at best in the last seconds; 0: not known.
  double rate() const { return outgoing_.rate(); }
  Counts counts() const;

  /// See StreamLane::send.
  void send(void* request, uint64_t tag, const std::byte* data, size_t length);
  /// See StreamLane::notify.
  void notify(uint64_t topic, std::string_view text);
  /// This side will send nothing more. Once all is acknowledged, the other side is told.
  void say_bye();
  /// All that was sent has arrived, the bye too if it was said.
  bool is_flushed() const;
  /// Closes the connections, and completes what is in progress with an error.
  void close();

  /// Whether a caller with this hello gets a connection. Each number only once.
  bool admit(const StreamHello& hello) { return !is_closed_ && pool_.accept(hello); }
  /// `stream`: of an admitted caller, already answered.
  void take(const StreamHello& hello, std::unique_ptr<ByteStream> stream, StreamTime now);

  void progress(StreamTime now);
  /// When that must be called again even if nothing comes.
  StreamTime due(StreamTime now) const;

 private:
  IncomingMessages::Body place(const Frame& chunk) override { return incoming_.place(chunk); }
  void on_chunk(const IncomingMessages::Body& body) override { incoming_.on_chunk(body); }
  void on_frame(const Frame& frame, std::string_view body) override;
  void on_activity() override { on_dirty_(*this); }

  void write_now();
  void fail(Fault fault, const std::string& why);
  void take_out_broken();
  void learn(StreamTime now);
  void write_control(StreamTime now);
  void write_ack(StreamTime now);
  void write_envelopes(StreamConnection& control, StreamTime now);
  void write_chunks(StreamTime now);
  bool write_chunk(StreamConnection& connection, bool is_only, StreamTime now);
  void give_back();
  StreamDuration age() const;
  size_t chunk_bytes(const TcpState& tcp) const;
  int wanted() const;

  const StreamOptions& options_;
  const StreamTarget target_;
  const std::function<void(StreamPath&)> on_dirty_;
  StreamMatcher& matcher_;
  IncomingMessages incoming_;
  OutgoingMessages outgoing_;
  ConnectionPool pool_;
  ConnectionCount count_;
  Counts counts_;
  int bad_in_a_row_ = 0;  // bad frames since something was acknowledged
  int wish_ = 0;          // how many connections the other side wants
  int told_wish_ = 0;
  std::optional<StreamTime> ack_due_;
  size_t ack_turn_ = 0;           // which control connection is next
  size_t late_turn_ = 0;          // which connection is next for what is late
  StreamTime next_grants_{};      // when to repeat those that seem lost
  std::optional<uint64_t> ping_;  // to be answered
  StreamTime last_control_{};     // when something was written that the other kernel acknowledges
  bool waits_for_room_ = false;
  StreamTime next_chunks_{};  // when to look for room again
  StreamTime learned_at_{};
  uint64_t learned_bytes_ = 0;
  bool is_leaving_ = false;
  bool said_bye_ = false;
  bool has_left_ = false;
  bool is_closed_ = false;
  bool is_watched_ = false;
  Fault fault_{};
  std::string failure_;
};

}  // namespace q7x2
