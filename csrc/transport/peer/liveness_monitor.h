// LivenessMonitor: what this process learns about whether others are alive, and they about it.
//
//   this host:   ProcessWatch, a pidfd per process, and a connection to its LifeLine
//   other hosts: Heartbeat, a TCP connection per process, and the LifeLine that answers. A host
//                that does not answer is also probed by new connections (HostWatch)
//   both:        PortCall, by which a process gives up its connection to another
//
// Heartbeats and watches concern a process and its host: it runs, it has ended, it is silent. A
// break notice concerns the connection between two processes. It is the only way to say that one
// end has given the connection up. The last message of a process that leaves in good order ends the
// watches of all others, and does not count as a death.
//
// The monitor only reports what it found. The PeerTable decides what follows. Guarded by the
// reactor's lock; nothing here waits.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/owned_fd.h"
#include "transport/peer/heartbeat.h"
#include "transport/peer/life_line.h"
#include "transport/peer/port_call.h"
#include "transport/peer/process_watch.h"

namespace q7x2 {

class LivenessMonitor {
 public:
  using TimePoint = LivenessWatch::TimePoint;

  /// See HeartbeatListener for the arguments. Throws Error(kTransport), or Error(kInvalidArgument)
  /// if Q7X2_SILENCE is not a number of seconds.
  LivenessMonitor(uint64_t process, const MessageKey& key,
                  const std::vector<IpAddress>& addresses = {});
  LivenessMonitor(const LivenessMonitor&) = delete;
  LivenessMonitor& operator=(const LivenessMonitor&) = delete;

  // What others learn about this process.

  /// The port that other processes call; 0: they cannot.
  uint16_t port() const { return life_.port(); }
  /// From now on processes of other hosts can call the port; at first they cannot. See
  /// HeartbeatListener.
  void open_port(const std::optional<HostAddresses>& hosts) { life_.open(hosts); }
  void shut_port() { life_.shut(); }
  /// From now on calls of this process of another host are answered.
  void expect(uint64_t process) { life_.expect(process); }
  /// Ends the calls of this process for a dead connection, without a last message.
  void hang_up(uint64_t process, uint32_t incarnation) { life_.hang_up(process, incarnation); }
  /// See LifeLine.
  std::vector<IpAddress> take_admission_calls() { return life_.take_admission_calls(); }
  void admit_callers() { life_.admit_callers(); }
  /// Tells a process what `target.topic` says, even if this process does not watch it. If the
  /// process has ended, `poll` returns that with `who`, which must live as long as this object.
  void call_port(const HeartbeatTarget& target, void* who, TimePoint now);
  /// Whether a request for admission is in progress.
  bool asks_for_admission() const;
  /// Ends all connections in good order: processes that watch this one are told that it has left.
  void close();

  // What this process learns about others.

  /// Watches a process of this host. Returns false if it has already ended.
  bool watch_process(int pid, uint64_t process, void* who);
  /// Watches a process of another host; at most one watch per `who`. Does nothing if it has no
  /// port. `believes_refusals`: see Heartbeat; stays in effect.
  void watch_host(const HeartbeatTarget& target, void* who, TimePoint now,
                  bool believes_refusals = false);
  /// Stops watching.
  void forget(const void* who);
  /// What was found since the last call.
  std::vector<Finding> poll(TimePoint now);
  /// The break notices of other processes that have arrived since the last call.
  std::vector<HeartbeatHello> take_break_notices() { return life_.take_break_notices(); }
  /// Any thread. Becomes readable when `poll` should be called.
  int fd() const { return epoll_; }
  /// When `poll` must be called at the latest, even if nothing has become readable.
  TimePoint due() const;

  /// Number of processes of other hosts that are watched.
  size_t num_heartbeats() const { return heartbeats_.size(); }
  /// The heartbeat of a process of another host; null if it is not watched.
  const Heartbeat* heartbeat(const void* who) const;

 private:
  /// Calls `body(who, watch)` for each watch.
  template <typename Body>
  void for_each_watch(const Body& body);

  const uint64_t process_;
  const TimePoint::duration limit_;
  OwnedFd epoll_;
  LifeLine life_;
  std::map<const void*, std::unique_ptr<ProcessWatch>> processes_;  // by who
  std::map<const void*, std::unique_ptr<Heartbeat>> heartbeats_;    // by who
  std::vector<std::pair<const void*, std::unique_ptr<PortCall>>> port_calls_;
  TimePoint next_round_{};
  TimePoint due_ = TimePoint::max();  // the earliest time at which a watch is due
};

}  // namespace q7x2
