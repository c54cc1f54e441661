// HeartbeatListener: the port that other processes call, and the calls that have arrived.
//
// The port has the same number at several addresses: at the loopback, which only this host reaches,
// and at the job's interfaces, while other hosts may call. At these the kernel may drop calls from
// unexpected hosts (transport/net/host_addresses.h).
//
// A call begins with a HeartbeatHello, which proves that the caller belongs to the job. It is
// answered with another one if the caller is a process that this one has met in a group. Until then
// the call waits, for a few seconds at most, and only a few calls may wait at once: the oldest is
// dropped first. So strangers cost little. What a caller sends afterwards is read and dropped,
// because the caller only needs the kernel's acknowledgement. A break notice is stored, and its
// call ends.
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
  /// Throws Error(kTransport) if there can be no epoll descriptor, or if no port of Q7X2_PORT_RANGE
  /// is free. Without a range, a process that gets no port cannot be called.
  HeartbeatListener(uint64_t process, const MessageKey& key,
                    const std::vector<IpAddress>& addresses = {});
  HeartbeatListener(const HeartbeatListener&) = delete;
  HeartbeatListener& operator=(const HeartbeatListener&) = delete;

  /// 0 if there is no port.
  uint16_t port() const { return port_; }
  /// From now on other hosts may call: `hosts` if given, otherwise all.
  void open(const std::optional<HostAddresses>& hosts);
  /// Other hosts may not call, which is also the state at first.
  void shut();
  /// Becomes readable when `look` must be called.
  int fd() const { return epoll_; }
  /// From now on calls of this process are answered.
  void expect(uint64_t process) { expected_.insert(process); }

  /// Accepts calls and answers them.
  void look(TimePoint now);
  /// To be called now and then: drops what callers sent, and ends calls that waited too long.
  void tidy(TimePoint now);
  /// The break notices that have arrived since the last call.
  std::vector<HeartbeatHello> take_break_notices() { return std::exchange(break_notices_, {}); }
  struct AdmissionCall {
    IpAddress caller;
    PrivateSocket line;  ///< to be closed when the caller is admitted
  };
  /// The requests for admission by processes of the job that have arrived since the last call.
  std::vector<AdmissionCall> take_admission_calls() { return std::exchange(admission_calls_, {}); }
  /// Ends the calls of a process for this incarnation of the connection and earlier ones, without a
  /// last message. A host that is silent for ever would not end them itself.
  void hang_up(uint64_t process, uint32_t incarnation);
  /// Ends all calls in good order, and accepts no more.
  void close();

  /// Whether no call is open and new calls are accepted. Then `tidy` has nothing to do.
  bool is_idle() const { return waiting_.empty() && answered_.empty() && !is_resting_; }
  size_t num_waiting() const { return waiting_.size(); }
  size_t num_answered() const { return answered_.size(); }

 private:
  struct Call {
    PrivateSocket socket;
    TimePoint since;
    HeartbeatHello::Bytes bytes{};
    size_t num_bytes = 0;
    std::optional<HeartbeatHello> hello = {};  // after its proof was checked
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
  std::vector<Socket> sockets_;  // the loopback's is first
  uint16_t port_ = 0;
  bool is_resting_ = false;  // accepts no calls because files ran out
  std::set<uint64_t> expected_;
  // The last numbers of calls, by process and topic. Contains only processes of the job.
  std::map<std::pair<uint64_t, HeartbeatHello::Topic>, uint64_t> numbers_;
  std::deque<Call> waiting_;
  std::map<Key, Answered> answered_;
  std::vector<HeartbeatHello> break_notices_;
  std::vector<AdmissionCall> admission_calls_;
};

}  // namespace q7x2
