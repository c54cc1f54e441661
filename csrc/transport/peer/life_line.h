// LifeLine: the sockets whose end tells other processes that this one is gone.
//
//   other hosts: HeartbeatListener, a TCP port and the calls to it
//   this host:   a Unix socket in the abstract namespace, named after the process's number
//
// They belong to a thread that has its own file table. So the kernel closes them when the process
// ends, even if a forked child that has copies of all other files outlives it. It also closes them
// when the process starts another program by `exec`, which a pidfd does not report. If the kernel
// refuses a separate file table, children that are forked by the system call alone keep copies.
//
// The Unix socket carries only one last byte, and accepts only processes of the same user.
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

  /// The last byte on the Unix socket: the process leaves in good order.
  static constexpr char kLeft = 'l';

  /// `process`: this one. `key`: of messages to it. `addresses`: see HeartbeatListener. `period`:
  /// time between two calls of HeartbeatListener::tidy. Throws Error(kTransport).
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
  /// These wait until the thread has done it.
  void open(const std::optional<HostAddresses>& hosts);
  void shut();
  /// The addresses of the processes of the job that have asked for admission since the last call.
  std::vector<IpAddress> take_admission_calls();
  /// The callers returned by the last call are admitted now; they are told.
  void admit_callers();
  /// Ends all calls in good order and accepts no more. Waits until this is done.
  void close();

  /// Becomes readable when break notices or requests for admission have arrived.
  int fd() const { return news_; }

 private:
  class Holder;
  using Command = std::function<void(Holder&)>;

  void run(Holder& holder, Duration period) noexcept;
  void take_turn(Holder& holder, Duration period);
  void tell(Command command);
  void tell_and_wait(Command command);

  /// Whether the thread runs. It does not in a forked child, which then changes nothing.
  bool is_running();

  const ForkGuard home_;
  OwnedFd wake_;  // wakes the thread
  OwnedFd news_;
  uint16_t port_ = 0;
  std::mutex mutex_;
  std::deque<Command> commands_;
  std::vector<HeartbeatHello> break_notices_;
  std::vector<IpAddress> callers_;
  std::atomic<bool> has_notices_{false};
  std::atomic<bool> has_callers_{false};
  size_t num_taken_ = 0;  // callers that were taken and not yet admitted
  std::thread thread_;
};

/// A connection to the Unix socket of another process of this host. Invalid if that process has
/// none that this process can reach.
PrivateSocket connect_to_life_line(uint64_t process);

}  // namespace q7x2
