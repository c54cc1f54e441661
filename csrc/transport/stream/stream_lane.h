// StreamLane: messages between processes of different hosts, over many TCP connections.
//
// On a line with delay and loss one TCP connection carries a small part of what the line could. So
// a path has many, and they make up for each other: chunks go where there is room, go again where
// they are late, and a connection that breaks loses nothing.
//
// The lane does not wait and has no thread. Its owner calls `progress` when `fd` is readable or
// `due` has come. Each call does bounded work. Not thread-safe: whoever holds the reactor's lock
// calls it. docs/wide.md describes the protocol.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "transport/stream/event_loop.h"
#include "transport/stream/relay_line.h"
#include "transport/stream/stream_listener.h"
#include "transport/stream/stream_matcher.h"
#include "transport/stream/stream_options.h"
#include "transport/stream/stream_path.h"
#include "transport/trust/job_secret.h"

namespace q7x2 {

/// What becomes of a call for a path that is not open.
enum class CallFate {
  kWaits,    ///< until it is open, if it will ever be
  kGivenUp,  ///< this process will not use it any more: the caller is told
};
using OnStreamCall = std::function<CallFate(uint64_t process, uint64_t epoch)>;

class StreamLane {
 public:
  /// `self`: this process. `on_complete` is told of every send and receive, once, from inside of
  /// the calls below; it must not call the lane. Throws Error(kTransport).
  StreamLane(StreamOptions options, const Identity& self, const JobSecret& secret,
             OnStreamComplete on_complete);
  StreamLane(const StreamLane&) = delete;
  StreamLane& operator=(const StreamLane&) = delete;
  ~StreamLane() { notices_.clear(); }

  /// Other processes may call at these addresses from now on, at one port, which it returns. Once.
  /// `port`: must be this one; 0: any. Throws Error(kTransport).
  uint16_t listen(const std::vector<IpAddress>& addresses, uint16_t port = 0);
  /// See StreamListener.
  void admit_hosts(const HostAddresses& hosts);
  void admit_all();
  /// Other processes may also call at this relay, from now on.
  void wait_at_relay(const IpEndpoint& relay);

  /// `on_call`: another process calls for a path that is not open; it may be opened from inside of
  /// this.
  void on_call(OnStreamCall open) { on_call_ = std::move(open); }
  /// `on_failure`: a path has failed, for `StreamPath::failure`. It may not close the path. Sends
  /// that were copied, and receives that any path may serve, are not told otherwise.
  void on_failure(std::function<void(const StreamPath&)> tell) { on_failure_ = std::move(tell); }
  /// Messages that nobody has asked for are dropped if `is_wanted` says no to their tag.
  void on_unexpected(std::function<bool(uint64_t tag)> is_wanted) {
    matcher_.on_unexpected(std::move(is_wanted));
  }

  /// `hear`: told of the notices of this topic. It must not call the lane.
  void on_notice(uint64_t topic, OnStreamNotice hear) { notices_[topic] = std::move(hear); }
  /// See StreamMatcher.
  void on_match(std::function<bool(void* request)> may_have) {
    matcher_.on_match(std::move(may_have));
  }

  /// A path to a process. One for each of its epochs.
  StreamPath& open(const StreamTarget& target);
  /// Closes it (StreamPath::close), and forgets it.
  void close(StreamPath& path);

  /// Sends a message. `data` must stay until `request` completes, which it may from inside of the
  /// call. Messages with one tag between two processes arrive in the order in which they were sent.
  void send(StreamPath& path, void* request, uint64_t tag, const void* data, size_t length);
  /// Sends a text that no receive waits for. It keeps its order with messages and other notices
  /// (StreamNotice). Nothing happens if the path is closed.
  void notify(StreamPath& path, uint64_t topic, std::string_view text) { path.notify(topic, text); }
  /// The oldest message whose tag equals `tag` in the bits of `mask`, from any path. Messages that
  /// are longer than `room` are dropped, and complete as truncated. Returns true if a message has
  /// it already.
  bool receive(void* request, uint64_t tag, uint64_t mask, void* data, size_t room);
  /// See StreamMatcher.
  void cancel(void* request) { matcher_.cancel(request); }
  bool take_back(void* request) { return matcher_.take_back(request); }
  std::optional<uint64_t> find_unexpected(uint64_t tag, uint64_t mask) const {
    return matcher_.find_unexpected(tag, mask);
  }
  void drop_unexpected(uint64_t tag, uint64_t mask) { matcher_.drop_unexpected(tag, mask); }

  /// True: something happened.
  bool progress();
  int fd() const { return loop_.fd(); }
  /// When `progress` must be called even if `fd` is not readable. In the past: at once.
  StreamTime due() const { return dirty_.empty() ? due_ : StreamTime{}; }

  /// Nothing can happen but that somebody calls.
  bool is_quiet() const { return paths_.empty() && (!listener_ || listener_->is_idle()); }
  uint16_t port() const { return listener_ ? listener_->port() : uint16_t{0}; }
  bool encrypts() const { return options_.tls != nullptr; }
  /// All paths end: nothing more will be sent.
  void say_bye();
  /// What was sent and has not arrived, in bytes; see OutgoingMessages.
  uint64_t unacknowledged_bytes() const;
  /// Calls that were refused.
  uint64_t refused_calls() const { return listener_ ? listener_->refused() : 0; }

 private:
  using Key = std::pair<uint64_t, uint64_t>;  // process, epoch

  StreamListener::Verdict judge(const StreamHello& hello);
  void take(const StreamHello& hello, std::unique_ptr<ByteStream> stream);
  void visit(StreamPath& path, StreamTime now);

  const StreamOptions options_;
  const Identity self_;
  const JobSecret secret_;
  const MessageKey own_key_;
  const OnStreamComplete on_complete_;
  OnStreamCall on_call_;
  EventLoop loop_;
  StreamMatcher matcher_;
  std::map<uint64_t, OnStreamNotice> notices_;  // by topic
  std::map<Key, std::unique_ptr<StreamPath>> paths_;
  std::vector<StreamPath*> dirty_;
  std::optional<StreamListener> listener_;
  std::optional<RelayLine> relay_;  // ends before the listener, which it gives calls
  StreamTime due_ = StreamTime::max();
  std::function<void(const StreamPath&)> on_failure_;
};

}  // namespace q7x2
