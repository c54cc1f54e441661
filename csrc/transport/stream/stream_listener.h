// StreamListener: the port at which other processes call, and the calls that wait.
//
// A call begins with a StreamHello. A caller that has not proven itself costs little: only few may
// wait, for a few seconds; the oldest goes first. A hello for a path that this process does not
// have yet waits, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "base/ip_address.h"
#include "transport/net/host_addresses.h"
#include "transport/net/private_socket.h"
#include "transport/stream/byte_stream.h"
#include "transport/stream/event_loop.h"
#include "transport/stream/stream_hello.h"
#include "transport/stream/stream_options.h"
#include "transport/trust/job_secret.h"

namespace q7x2 {

class StreamListener final : public EventHandler {
 public:
  static constexpr size_t kMaxWaiting = 128;
  static constexpr std::chrono::seconds kPatience{5};

  enum class Verdict {
    kTake,
    kWait,
    kRefuse,
    kGivenUp,  ///< this process will not use the path any more, and says so
  };
  /// Whose path `hello` is for; called again and again while the answer is kWait.
  using Admit = std::function<Verdict(const StreamHello& hello)>;
  /// The connection of an admitted caller, whose hello must still be answered.
  using Take = std::function<void(const StreamHello& hello, std::unique_ptr<ByteStream> stream)>;

  /// `key`: of messages to this process. Has one port at the loopback and at these addresses, which
  /// is `port` unless that is 0. Throws Error(kTransport) if there is no port for one of the
  /// addresses.
  StreamListener(EventLoop& loop, uint64_t process, const MessageKey& key,
                 const std::vector<IpAddress>& addresses, uint16_t port,
                 const StreamOptions& options, Admit admit, Take take);

  uint16_t port() const { return port_; }
  /// Only these hosts may connect from now on. Before the first call nobody but this host can.
  void admit_hosts(const HostAddresses& hosts);
  /// All hosts may from now on: NAT hides from which address a process calls. It must still prove
  /// that it belongs to the job.
  void admit_all();
  /// A connection on which a process may call.
  void take(PrivateSocket socket);
  /// To be called when calls may have arrived, become admissible or have waited too long.
  void look(StreamTime now);
  bool is_idle() const { return waiting_.empty() && !is_resting_; }
  size_t num_waiting() const { return waiting_.size(); }
  /// Hellos that were none, or proved nothing, or came twice.
  uint64_t refused() const { return refused_; }

  void on_ready(uint32_t events) override;

 private:
  /// The port at one address.
  struct Socket {
    PrivateSocket socket;
    EventEntry entry;
    bool is_listening = false;
  };
  struct Call final : EventHandler {
    explicit Call(StreamListener& listener) : owner(listener) {}
    void on_ready(uint32_t events) override;

    StreamListener& owner;
    StreamTime since;
    std::unique_ptr<ByteStream> stream;
    EventEntry entry;
    StreamHello::Bytes bytes{};
    size_t num_bytes = 0;
    std::optional<StreamHello> hello;
    bool is_over = false;
  };

  void bind_to(const std::vector<IpAddress>& addresses, uint16_t port);
  void bind_to_any(const std::vector<IpAddress>& addresses);
  bool bind(const std::vector<IpAddress>& addresses);
  bool listen(Socket& socket);
  void accept(Socket& from);
  void rest(bool on);
  void hear(Call& call);
  void decide(Call& call);

  EventLoop& loop_;
  const uint64_t process_;
  const MessageKey key_;
  const StreamOptions& options_;
  const Admit admit_;
  const Take take_;
  std::list<Socket> sockets_;  // the loopback's is first
  uint16_t port_ = 0;
  bool are_all_admitted_ = false;
  bool is_resting_ = false;  // no call can be accepted, for lack of files
  std::list<Call> waiting_;
  uint64_t refused_ = 0;
};

/// Says the answer on an admitted connection. False: it is over.
bool answer(ByteStream& stream, const StreamHello& call, StreamHello::Turn turn, uint64_t bounce,
            const MessageKey& key);

}  // namespace q7x2
