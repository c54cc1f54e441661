// RelayLine: the connection to a relay over which this process learns that others call it there. It
// answers each call with a new connection to the relay, which then leads to the caller.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <list>

#include "base/ip_address.h"
#include "transport/net/private_socket.h"
#include "transport/stream/event_loop.h"
#include "transport/stream/relay_hello.h"
#include "transport/stream/stream_options.h"

namespace q7x2 {

class RelayLine final : public EventHandler {
 public:
  /// A connection that leads to a caller.
  using Take = std::function<void(PrivateSocket)>;

  /// `hello`: of a listening process.
  RelayLine(EventLoop& loop, const IpEndpoint& relay, const RelayHello& hello,
            const StreamOptions& options, Take take);

  /// Makes the line again if it broke, and gives up answers that take too long.
  void look(StreamTime now);
  /// When to look at the latest.
  StreamTime due() const;
  bool is_registered() const { return is_registered_; }

  void on_ready(uint32_t events) override;

 private:
  /// A connection for a call, until it is made.
  struct Answer final : EventHandler {
    explicit Answer(RelayLine& line) : owner(line) {}
    void on_ready(uint32_t) override { owner.answer(*this); }

    RelayLine& owner;
    RelayHello::Name number{};
    StreamTime until;
    PrivateSocket socket;
    EventEntry entry;  // removed before the socket is closed
    bool is_over = false;
  };

  void connect(StreamTime now);
  void hang_up();
  void read();
  void begin_answer();
  void answer(Answer& call);
  bool say(int socket, RelayHello::Kind kind, const RelayHello::Name& name) const;

  EventLoop& loop_;
  const IpEndpoint relay_;
  const RelayHello hello_;
  const StreamOptions& options_;
  const Take take_;
  PrivateSocket socket_;
  EventEntry entry_;  // removed before the socket is closed
  std::list<Answer> answers_;
  StreamTime next_{};  // when to connect again
  bool is_connected_ = false;
  bool is_registered_ = false;
  RelayHello::Name record_{};
  size_t num_read_ = 0;
};

}  // namespace q7x2
