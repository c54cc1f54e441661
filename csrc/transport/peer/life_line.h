// LifeLine: the sockets whose end tells other processes that this one is gone.
//
//   other hosts: HeartbeatListener, a TCP port and the calls that came
//   this host:   a Unix socket in the abstract namespace, named by the process's number
//
// They belong to a thread with files of its own. The kernel closes them when the process ends, also
// if a forked child outlives it that has copies of all other files, and when the process becomes
// another program by `exec`, which a pidfd does not tell. Where the kernel refuses such files,
// children that are forked by the system call alone keep copies.
//
// The Unix socket carries nothing but a last byte, and takes processes of the same user only.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/owned_fd.h"
#include "base/process.h"
#include "transport/net/private_socket.h"
#include "transport/peer/heartbeat_listener.h"

namespace q7x2 {

class LifeLine {
 public:
  using Duration = std::chrono::steady_clock::duration;

  /// The last byte on the Unix socket: the process ends in good order.
  static constexpr char kLeft = 'l';

  /// `process`: this one. `key`: of messages to it. `addresses`: see HeartbeatListener. `period`:
  /// between two rounds of tidying. Throws Error(kTransport).
  LifeLine(uint64_t process, const MessageKey& key, const std::vector<IpAddress>& addresses,
           Duration period);
  ~LifeLine();
  LifeLine(const LifeLine&) = delete;
  LifeLine& operator=(const LifeLine&) = delete;

  /// See HeartbeatListener.
  uint16_t port() const { return port_; }
  void expect(uint64_t process);
  void hang_up(uint64_t process, uint32_t incarnation);
  std::vector<HeartbeatHello> take_break_notices();
  /// These return when it is so.
  void open(const std::optional<HostAddresses>& hosts);
  void shut();
  /// The addresses of processes of the job that asked to be let connect since the last call.
  std::vector<IpAddress> take_admission_calls();
  /// Those of the last call may connect now, and learn it.
  void admit_callers();
  /// Ends all calls, in good order; returns when it is done. Takes no more.
  void close();

  /// Becomes readable when break notices or calls for admission have come.
  int fd() const { return news_; }

 private:
  class Holder;
  using Command = std::function<void(Holder&)>;

  void run(Holder& holder, Duration period) noexcept;
  void take_turn(Holder& holder, Duration period);
  void tell(Command command);
  void tell_and_wait(Command command);

  /// Whether the thread runs. A forked child has none, and leaves all as it is.
  bool is_running();

  const ForkGuard home_;
  OwnedFd wake_;  // the thread
  OwnedFd news_;
  uint16_t port_ = 0;
  std::mutex mutex_;
  std::deque<Command> commands_;
  std::vector<HeartbeatHello> break_notices_;
  std::vector<IpAddress> callers_;
  std::atomic<bool> has_notices_{false};
  std::atomic<bool> has_callers_{false};
  size_t num_taken_ = 0;  // callers that were taken and not admitted
  std::thread thread_;
};

/// A connection to the Unix socket of another process of this host. Invalid if it has none that
/// this process can reach.
PrivateSocket connect_to_life_line(uint64_t process);

}  // namespace q7x2
