// ControlPlane: sends control messages, wake-ups and rings to peers, and collects those that
// arrive.
//
// All are active messages on the shared network; a goodbye also goes over a private link. Control
// messages come in envelopes. A wake-up is empty and needs none: a process that sleeps while mail
// lies for it in shared memory looks at the memory when one arrives. A ring says in which group a
// message lies for a process that expects none, and that process looks there.
#pragma once

#include <bitset>
#include <cstdint>
#include <vector>

#include "transport/peer/control.h"
#include "transport/peer/peer_table.h"
#include "transport/trust/envelope.h"
#include "transport/ucx/reactor.h"
#include "transport/ucx/tag.h"

namespace q7x2 {

class ControlPlane {
 public:
  /// Throws Error(kTransport).
  ControlPlane(Reactor& reactor, Envelopes& envelopes);
  ControlPlane(const ControlPlane&) = delete;
  ControlPlane& operator=(const ControlPlane&) = delete;

  /// Does nothing if that link of the peer is not open. Between links there is no order.
  void send(Locked& locked, Peer& peer, const Control& control, Wire wire = Wire::kShared);
  /// Its shared link must be open.
  void wake(Locked& locked, Peer& peer);
  /// The same. `slot`: of the group, at the peer.
  void notify(Locked& locked, Peer& peer, uint16_t slot);

  /// Nothing has arrived, and nothing was lost.
  bool is_idle(Locked&) const { return arrived_.empty() && !lost_; }
  /// What has arrived since the last call, in its order for each sender.
  std::vector<Control> take_arrived(Locked&);
  /// The slots that were rung for since the last call.
  std::vector<uint16_t> take_rung(Locked&);
  /// Whether a message could not be kept for want of memory; once. Nobody knows for which group.
  bool take_lost(Locked&);

 private:
  static ucs_status_t on_control(void* arg, const void* header, size_t header_length, void* data,
                                 size_t length, const ucp_am_recv_param_t* param);
  static ucs_status_t on_private_control(void* arg, const void* header, size_t header_length,
                                         void* data, size_t length,
                                         const ucp_am_recv_param_t* param);
  static ucs_status_t on_wake(void* arg, const void* header, size_t header_length, void* data,
                              size_t length, const ucp_am_recv_param_t* param);
  static ucs_status_t on_ring(void* arg, const void* header, size_t header_length, void* data,
                              size_t length, const ucp_am_recv_param_t* param);

  void take(Envelopes::Kind kind, const void* header, size_t length);

  Reactor& reactor_;
  Envelopes& envelopes_;
  std::vector<Control> arrived_;
  bool lost_ = false;
  std::vector<uint16_t> rung_;            // each once
  std::bitset<tag::kMaxGroups> is_rung_;  // by slot
};

}  // namespace q7x2
