// HeartbeatListener: the port that processes call, and the calls that came.
//
// The port is one number at several addresses: that of the loopback, which only this host reaches,
// and those of the job's interfaces, while other hosts may call. There the kernel may drop what
// comes from hosts that nobody expects (transport/net/host_addresses.h).
//
// A call begins with a HeartbeatHello, which proves that the caller belongs to the job. It is
// answered with one if the caller is a process that this one has met in a group. Until then it
// waits, for a few seconds at most, and only few calls may wait at once: the oldest goes first. So
// strangers cost little. What a caller sends afterwards is read and dropped: it only wants to see
// that the kernel acknowledges it. A break notice is noted, and the call is over.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "base/ip_address.h"
#include "base/owned_fd.h"
#include "transport/net/host_addresses.h"
#include "transport/net/private_socket.h"
#include "transport/peer/heartbeat_hello.h"

namespace q7x2 {

class HeartbeatListener {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  static constexpr size_t kMaxWaiting = 64;
  static constexpr std::chrono::seconds kPatience{5};

  /// `process`: this one. `key`: of messages to it. `addresses`: at which other hosts may call.
  /// Throws Error(kTransport) if there can be no epoll descriptor, or no
  /// port of Q7X2_PORT_RANGE is free. Else nobody can call a process that can have no port.
  HeartbeatListener(uint64_t process, const MessageKey& key,
                    const std::vector<IpAddress>& addresses = {});
  HeartbeatListener(const HeartbeatListener&) = delete;
  HeartbeatListener& operator=(const HeartbeatListener&) = delete;

  /// 0: there is none.
  uint16_t port() const { return port_; }
  /// Other hosts may call from now on: these if there are any given, else all.
  void open(const std::optional<HostAddresses>& hosts);
  /// They may not. At first they may not.
  void shut();
  /// Becomes readable when a call must be looked at.
  int fd() const { return epoll_; }
  /// Calls of this process are answered from now on.
  void expect(uint64_t process) { expected_.insert(process); }

  /// Takes calls and answers them.
  void look(TimePoint now);
  /// Now and then: reads and drops what callers sent, ends calls that waited too long.
  void tidy(TimePoint now);
  /// The break notices that came since the last call.
  std::vector<HeartbeatHello> take_break_notices() { return std::exchange(break_notices_, {}); }
  struct AdmissionCall {
    IpAddress caller;
    PrivateSocket line;  ///< to be closed when the caller may connect
  };
  /// The calls of processes of the job that asked to be let connect since the last call.
  std::vector<AdmissionCall> take_admission_calls() { return std::exchange(admission_calls_, {}); }
  /// Ends the calls of a process for this incarnation of the connection and those before it,
  /// without a word: a host that is silent for ever never would.
  void hang_up(uint64_t process, uint32_t incarnation);
  /// Ends all calls, in good order, and takes no more.
  void close();

  /// Nobody has called, and whoever does is heard: there is nothing to tidy.
  bool is_idle() const { return waiting_.empty() && answered_.empty() && !is_resting_; }
  size_t num_waiting() const { return waiting_.size(); }
  size_t num_answered() const { return answered_.size(); }

 private:
  struct Call {
    PrivateSocket socket;
    TimePoint since;
    HeartbeatHello::Bytes bytes{};
    size_t num_bytes = 0;
    std::optional<HeartbeatHello> hello = {};  // once it has proven itself
  };
  using Key = std::tuple<uint64_t, uint32_t, HeartbeatHello::Topic>;  // process, incarnation, topic

  /// The port at one address. It keeps its number while it does not listen.
  struct Socket {
    PrivateSocket socket;
    bool is_listening = false;
  };

  bool bind(const std::vector<IpAddress>& addresses);
  static void listen(Socket& socket);
  void watch(Socket& socket, bool on) const;
  void set_resting(bool on);
  void take_calls(TimePoint now);
  bool take_call(const Socket& socket, TimePoint now);
  bool is_for_this(const std::optional<HeartbeatHello>& hello);
  void hear(Call& call);
  void answer(Call& call);
  struct Answered {
    HeartbeatHello hello;  // the answer
    PrivateSocket socket;
  };

  const uint64_t process_;
  const MessageKey key_;
  OwnedFd epoll_;
  std::vector<Socket> sockets_;  // the loopback's first
  uint16_t port_ = 0;
  bool is_resting_ = false;  // no call can be taken, for lack of files
  std::set<uint64_t> expected_;
  // The last numbers of calls, by process and topic. Only processes of the job have one.
  std::map<std::pair<uint64_t, HeartbeatHello::Topic>, uint64_t> numbers_;
  std::deque<Call> waiting_;
  std::map<Key, Answered> answered_;
  std::vector<HeartbeatHello> break_notices_;
  std::vector<AdmissionCall> admission_calls_;
};

}  // namespace q7x2
