// Admission: which processes may connect to this process, and call its port.
//
// Processes of other hosts may connect once a group with them is being made (TcpGate,
// HeartbeatListener). If NAT hides from where a process calls, every host may call the StreamLane,
// whose callers prove that they belong to the job. While this process publishes its peer info, the
// callers are not known yet, so every host may call the port. Guarded by the reactor's lock.
#pragma once

#include <span>
#include <string_view>

#include "transport/peer/liveness_monitor.h"
#include "transport/peer/peer_info.h"
#include "transport/ucx/reactor.h"

namespace q7x2 {

class Admission {
 public:
  /// `behind_nat`: PeerInfo::behind_nat of this process.
  Admission(Reactor& reactor, LivenessMonitor& monitor, bool behind_nat)
      : reactor_(reactor), monitor_(monitor), behind_nat_(behind_nat) {}

  /// From now on other hosts may call this process's port for heartbeats, until `expect_no_others`
  /// has been called as often as this.
  void expect_others(Locked&);
  void expect_no_others(Locked&);
  /// From now on these processes may connect to this one, over TCP if they must, and call its port.
  /// `host_key`: this host's. Throws Error(kTransport).
  void admit(Locked& locked, std::span<const PeerInfo> peer_infos, std::string_view host_key);
  void admit(Locked& locked, const PeerInfo& peer_info, bool same_host);
  /// Admits the processes that have asked for it (PortCall).
  void poll(Locked& locked);
  /// Whether messages between this process and the other one need more than shared memory.
  bool needs_network(const PeerInfo& peer_info, bool same_host) const;

 private:
  /// `are_others`: at least one of them is not this host.
  void admit(Locked& locked, const HostAddresses& hosts, bool are_others);
  /// If its connections come from an address that is not known: every host may call the lane.
  /// Returns whether that is so.
  bool admit_over_nat(const PeerInfo& peer_info, bool same_host);
  /// Opens the port to the hosts that this process expects.
  void open_port();

  Reactor& reactor_;
  LivenessMonitor& monitor_;
  const bool behind_nat_;
  int num_expecting_ = 0;  // how many operations expect calls from hosts that are not known yet
  bool has_other_hosts_ = false;  // whether another host was admitted
};

}  // namespace q7x2
