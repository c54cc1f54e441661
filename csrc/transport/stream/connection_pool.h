// ConnectionPool: the connections of a path. Makes those that are wanted, remakes those that broke,
// and watches whether the other process gives a sign of life.
//
//   no connection    calls go to all addresses of the other process at once; the first that is
//                    answered shows which address to use
//   silent for long  another call is made now and then, because TCP tries ever more rarely to get
//                    through on the connections that there are
//
// Signs of life are bytes, and what the other kernel acknowledges, also of a call that its process,
// because it is stopped or slow, does not answer.
//
// Over a relay, bytes alone are signs of life.
//
// A refused call says that nobody listens at the other port any more, or that a firewall does not
// let this side in. In the second case the other process notices that the connections broke, and
// calls itself. So refusals count only once it has had the time for that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ip_address.h"
#include "transport/stream/byte_stream.h"
#include "transport/stream/event_loop.h"
#include "transport/stream/stream_call.h"
#include "transport/stream/stream_connection.h"
#include "transport/stream/stream_options.h"
#include "transport/trust/job_secret.h"
#include "transport/trust/replay_window.h"

namespace q7x2 {

/// The other end of a path.
struct StreamTarget {
  Identity identity;
  uint64_t epoch = 0;                    ///< the path's, to that process
  std::vector<StreamAddress> addresses;  ///< at which it is called; empty: it calls
  bool calls = false;                    ///< this side makes the connections
  bool begins = false;  ///< it makes the first one even if it does not make the others
  /// Connections may lead over a relay, whose kernel says nothing about the other process.
  bool may_be_relayed = false;
};

class ConnectionPool {
 public:
  using Connections = std::vector<std::unique_ptr<StreamConnection>>;

  /// `own`: this process. `key`: of messages to the other one.
  ConnectionPool(EventLoop& loop, const StreamOptions& options, uint64_t own,
                 const StreamTarget& target, const MessageKey& key, ConnectionOwner& owner);

  /// Those that are open, the oldest first.
  const Connections& all() const { return connections_; }
  bool is_calling() const { return !calls_.empty(); }
  /// What the other process's bounce memory holds; known once there is a connection.
  uint64_t bounce() const { return bounce_; }
  /// How many connections were ever open.
  uint64_t num_made() const { return made_; }

  /// Whether this is the first hello with its number.
  bool accept(const StreamHello& hello) { return numbers_.accept(hello.number); }
  void add(std::unique_ptr<ByteStream> stream, uint64_t bounce, StreamTime now);
  /// Takes out what is over.
  std::vector<std::unique_ptr<StreamConnection>> take_broken();
  /// Closes this one in good order.
  void retire(const StreamConnection& connection);
  void close();

  /// Makes connections until there are `wanted`, and looks for signs of life. `is_busy`: somebody
  /// waits for something that the path carries. Else silence means nothing, and a process that
  /// cannot be reached is not called again. `rtt`: 0 if it is not known.
  void maintain(int wanted, bool is_busy, StreamDuration rtt, StreamTime now);
  /// When it must be called again at the latest.
  StreamTime due(bool is_busy, StreamTime now) const;
  StreamTime heard() const { return heard_; }
  /// Why the path is over; nothing: it is not.
  struct Death {
    bool has_ended = false;  ///< nobody listens at the port of the other process any more
    std::string reason;
  };
  std::optional<Death> death(StreamTime now) const;
  /// The other process says that it will not use the path any more.
  bool is_given_up() const { return is_given_up_; }
  /// Whether the other process, or its kernel, has given a sign of life recently.
  bool is_heard(StreamTime now) const { return made_ > 0 && now - heard_ <= options_.silence / 4; }

  /// How many of the oldest connections carry no chunks.
  size_t num_controls() const;
  /// What carries the next envelope or acknowledgement: of these, from the one with number `turn`
  /// on, the first that loses nothing and has room. Null if there is no connection.
  StreamConnection* control(size_t turn, StreamTime now) const;
  /// Any that loses nothing and has room, from number `turn` on: for what may be stuck elsewhere.
  StreamConnection* any(size_t turn, StreamTime now) const;

 private:
  StreamConnection* first_free(size_t turn, size_t count, StreamTime now) const;
  bool may_call(bool is_busy, StreamTime now) const;
  void look_at_calls(StreamTime now);
  void fail(StreamTime now);
  void call(const StreamAddress& target);
  void call_more(int wanted, StreamTime now);
  void listen_for_life(StreamTime now);
  std::string ports() const;
  bool is_refused() const;
  StreamTime refusals_count_at() const;
  StreamDuration patience() const;
  size_t num_addresses() const { return address_ ? 1 : target_.addresses.size(); }

  struct Call {
    Call(EventLoop& loop, const StreamAddress& target, const StreamHello& hello,
         const MessageKey& key, const StreamOptions& options, ConnectionOwner& owner)
        : attempt(loop, target, hello, key, options, [&owner] { owner.on_activity(); }) {}

    StreamCall attempt;
    StreamTime since;
  };

  EventLoop& loop_;
  const StreamOptions& options_;
  const uint64_t own_;
  const StreamTarget target_;
  const MessageKey key_;
  ConnectionOwner& owner_;
  Connections connections_;
  std::list<Call> calls_;
  std::optional<StreamAddress> address_;  // that has been answered
  ReplayWindow numbers_;                  // numbers of received hellos
  uint64_t next_number_ = 1;              // number of the next own hello
  uint64_t next_id_ = 1;
  uint64_t bounce_ = 0;
  uint64_t made_ = 0;
  StreamTime heard_;
  StreamTime looked_;  // when `maintain` was called
  StreamTime next_call_;
  StreamTime next_life_;  // when to look for signs of life
  StreamTime next_rescue_;
  int failures_ = 0;  // failed calls since the last one that succeeded
  bool is_given_up_ = false;
  // Since the last connection broke; while there is one, or the other side may not have called yet,
  // refusals come from a firewall.
  int refusals_ = 0;
  StreamTime alone_since_;
  StreamDuration rtt_{0};
};

}  // namespace q7x2
