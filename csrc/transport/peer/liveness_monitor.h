// LivenessMonitor: what this process learns of the lives of others, and what others learn of its.
//
//   this host:   ProcessWatch, a pidfd per process, and a connection to its LifeLine
//   other hosts: Heartbeat, a TCP connection per process, and the LifeLine that answers. A host
//   from
//                which nothing comes is knocked at (HostWatch)
//   both:        PortCall, by which a process gives up its connection to another
//
// Heartbeats and watches are about a process and its host: it runs, it has ended, it is silent. A
// break notice is about the connection between two processes, and the only way to say that one end
// has given it up. The last word of a process that leaves in good order ends the watches of all
// others, and is no news of a death.
//
// The monitor only says what it found. The PeerTable decides what follows. Guarded by the reactor's
// lock; nothing here waits.
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
  /// if Q7X2_SILENCE is no number of seconds.
  LivenessMonitor(uint64_t process, const MessageKey& key,
                  const std::vector<IpAddress>& addresses = {});
  LivenessMonitor(const LivenessMonitor&) = delete;
  LivenessMonitor& operator=(const LivenessMonitor&) = delete;

  // What others learn of this process.

  /// Processes call this port; 0: they cannot.
  uint16_t port() const { return life_.port(); }
  /// Those of other hosts can from now on, and cannot at first: see HeartbeatListener.
  void open_port(const std::optional<HostAddresses>& hosts) { life_.open(hosts); }
  void shut_port() { life_.shut(); }
  /// Calls of this process of another host are answered from now on.
  void expect(uint64_t process) { life_.expect(process); }
  /// Those of this process for a connection that is dead are ended, without a word.
  void hang_up(uint64_t process, uint32_t incarnation) { life_.hang_up(process, incarnation); }
  /// See LifeLine.
  std::vector<IpAddress> take_admission_calls() { return life_.take_admission_calls(); }
  void admit_callers() { life_.admit_callers(); }
  /// Says what `target.topic` is to a process, also if it does not watch this one. If the process
  /// has ended, `poll` says so of `who`, which must live as long as this object.
  void call_port(const HeartbeatTarget& target, void* who, TimePoint now);
  /// A request for admission is on its way.
  bool asks_for_admission() const;
  /// Ends all connections in good order: those who watch this process learn that it has left.
  void close();

  // What this process learns of others.

  /// Watches a process of this host. False: it has ended already.
  bool watch_process(int pid, uint64_t process, void* who);
  /// Watches a process of another host, once. Without a port there is nothing to watch.
  /// `believes_refusals`: see Heartbeat; it holds from then on.
  void watch_host(const HeartbeatTarget& target, void* who, TimePoint now,
                  bool believes_refusals = false);
  /// Watches no more.
  void forget(const void* who);
  /// What was found since the last call.
  std::vector<Finding> poll(TimePoint now);
  /// The break notices of others that came since the last call.
  std::vector<HeartbeatHello> take_break_notices() { return life_.take_break_notices(); }
  /// Any thread. Becomes readable when there is something to poll.
  int fd() const { return epoll_; }
  /// When to poll at the latest, also if nothing has become readable.
  TimePoint due() const;

  /// How many processes of other hosts are watched.
  size_t num_heartbeats() const { return heartbeats_.size(); }
  /// The heartbeat of a process of another host; null: it is not watched.
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
  TimePoint due_ = TimePoint::max();  // of the watch that is due first
};

}  // namespace q7x2
