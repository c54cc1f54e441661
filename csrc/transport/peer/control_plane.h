// ControlPlane: sends control messages, wake-ups and rings to peers, and collects those that
// arrive.
//
// All are active messages on the shared network, or notices of the StreamLane; a goodbye also goes
// over a private link. Control messages over UCX are sent in envelopes. A wake-up is empty and
// needs no envelope: it makes a sleeping process poll its shared memory. A ring goes to a process
// that does not poll. It names the group that has a message, and the process polls this group's
// memory.
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

  /// Does nothing if that link of the peer is not open. Messages on different links have no order.
  /// Over many connections they keep their order with the messages of tasks.
  void send(Locked& locked, Peer& peer, const Control& control, Wire wire = Wire::kShared);
  /// Sends a wake-up. The peer's shared link must be open.
  void wake(Locked& locked, Peer& peer);
  /// Sends a ring; the same holds. `slot`: the group's slot at the peer.
  void notify(Locked& locked, Peer& peer, uint16_t slot);

  /// Whether nothing has arrived and nothing was lost.
  bool is_idle(Locked&) const { return arrived_.empty() && !lost_; }
  /// What has arrived since the last call; messages of one sender keep their order.
  std::vector<Control> take_arrived(Locked&);
  /// The slots for which a ring has arrived since the last call.
  std::vector<uint16_t> take_rung(Locked&);
  /// Returns true once if a message was lost because memory was short. Its group is unknown.
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

  void take(Wire wire, const void* header, size_t length);
  void take(const StreamNotice& notice);
  void add(uint64_t sender, std::string_view bytes, Wire wire, StreamNotice::Turn turn);

  Reactor& reactor_;
  Envelopes& envelopes_;
  std::vector<Control> arrived_;
  bool lost_ = false;
  std::vector<uint16_t> rung_;            // each slot at most once
  std::bitset<tag::kMaxGroups> is_rung_;  // by slot
};

}  // namespace q7x2
