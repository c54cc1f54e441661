// Admission: who may connect to this process, and call its port.
//
// Processes of other hosts may connect once a group with them is being made (TcpGate,
// HeartbeatListener). While this process's peer info goes out, nobody knows yet who will call, so
// every host may call the port. Guarded by the reactor's lock.
#pragma once

#include <span>
#include <string_view>

#include "transport/peer/liveness_monitor.h"
#include "transport/peer/peer_info.h"
#include "transport/ucx/reactor.h"

namespace q7x2 {

class Admission {
 public:
  Admission(Reactor& reactor, LivenessMonitor& monitor) : reactor_(reactor), monitor_(monitor) {}

  /// Other hosts may call this process's port for heartbeats from now on, until `expect_no_others`
  /// was called as often.
  void expect_others(Locked&);
  void expect_no_others(Locked&);
  /// These processes may connect to this one, over TCP if they must, and call it. `host_key`: this
  /// host's. Throws Error(kTransport).
  void admit(Locked& locked, std::span<const PeerInfo> peer_infos, std::string_view host_key);
  void admit(Locked& locked, const PeerInfo& peer_info, bool same_host);
  /// Lets those connect that have asked for it (PortCall).
  void poll(Locked& locked);
  /// Whether this process talks to that one by other means than memory that both share.
  bool needs_network(const PeerInfo& peer_info, bool same_host) const;

 private:
  /// `are_others`: there are hosts among them that are not this one.
  void admit(Locked& locked, const HostAddresses& hosts, bool are_others);
  /// The port is open to whom this process expects.
  void open_port();

  Reactor& reactor_;
  LivenessMonitor& monitor_;
  int num_expecting_ = 0;         // reasons to be called by hosts that are not known yet
  bool has_other_hosts_ = false;  // among those that were admitted
};

}  // namespace q7x2
