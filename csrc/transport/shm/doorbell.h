// Doorbell: wakes ranks of this host when there is something for them in a group's shared memory.
//
// The memory itself shows which rank must be woken (ShmChannel). Waking needs UCX, because the rank
// sleeps on UCX's event descriptor.
#pragma once

#include <cstdint>
#include <vector>

#include "transport/peer/control_plane.h"
#include "transport/peer/peer_table.h"
#include "transport/shm/shm_channel.h"

namespace q7x2 {

/// A rank of this host; `peer` is null for this rank. `slot`: the group's slot at that rank.
struct Resident {
  int rank = -1;
  Peer* peer = nullptr;
  uint16_t slot = 0;
};

class Doorbell {
 public:
  /// `residents`: the members of `channel`, in the same order.
  Doorbell(ControlPlane& controls, ShmChannel& channel, std::vector<Resident> residents)
      : controls_(controls), channel_(channel), residents_(std::move(residents)) {}

  const Resident& resident(int member) const { return residents_[static_cast<size_t>(member)]; }
  /// To be called after a descriptor of a collective was sent, and after room was made in a full
  /// mailbox or a place became free.
  void wake(Locked& locked, int member);
  /// To be called after a descriptor of a message, because the receiver may have nothing in
  /// progress.
  void notify(Locked& locked, int member);

 private:
  Peer* reachable(int member) const;

  ControlPlane& controls_;
  ShmChannel& channel_;
  const std::vector<Resident> residents_;
};

}  // namespace q7x2
