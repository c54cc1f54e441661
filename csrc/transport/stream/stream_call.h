// StreamCall: a connection of a path in the making, at the side that makes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/ip_address.h"
#include "transport/stream/byte_stream.h"
#include "transport/stream/event_loop.h"
#include "transport/stream/relay_hello.h"
#include "transport/stream/stream_hello.h"
#include "transport/trust/job_secret.h"

namespace q7x2 {

/// Where a process is called.
struct StreamAddress {
  IpEndpoint endpoint;
  /// What is said there first: a relay must know which process is meant. Nothing: it is the
  /// process's own.
  std::optional<RelayHello> relay = {};

  bool operator==(const StreamAddress& other) const {
    return endpoint == other.endpoint && relay.has_value() == other.relay.has_value();
  }
};

class StreamCall final : public EventHandler {
 public:
  enum class State {
    kConnecting,
    kGreeting,  ///< connected; the hello is sent and the answer read
    kMade,
    kRefused,  ///< by the other kernel: nobody listens there
    kGivenUp,  ///< by the other process, which will not use the path any more
    kFailed,
  };

  /// `key`: of messages to the process that is called. `options` must outlive it. `on_change`: its
  /// state is another.
  StreamCall(EventLoop& loop, const StreamAddress& target, const StreamHello& hello,
             const MessageKey& key, const StreamOptions& options, std::function<void()> on_change);

  State state() const { return state_; }
  const StreamAddress& target() const { return target_; }
  const StreamHello& hello() const { return hello_; }
  /// Whether the other kernel has all that was said so far, and nothing is missing but the answer
  /// of the process, which may be stopped or slow.
  bool is_heard() const;
  /// What the other process says. Once it is made.
  const StreamHello& answer() const { return answer_; }
  std::unique_ptr<ByteStream> take_stream();

  void on_ready(uint32_t events) override;

 private:
  bool introduce();
  void greet();
  bool hears(StreamHello::Turn turn);

  const StreamAddress target_;
  const StreamHello hello_;
  const MessageKey key_;
  const StreamOptions& options_;
  const std::function<void()> on_change_;
  PrivateSocket socket_;  // until it is connected
  std::unique_ptr<ByteStream> stream_;
  EventEntry entry_;  // removed before the socket is closed
  State state_ = State::kConnecting;
  StreamHello::Bytes sent_;
  size_t num_sent_ = 0;
  StreamHello::Bytes read_{};
  size_t num_read_ = 0;
  StreamHello answer_;
};

}  // namespace q7x2
