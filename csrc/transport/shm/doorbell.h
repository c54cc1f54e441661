// Doorbell: wakes ranks of this host for what lies in a group's shared memory.
//
// Which rank must be woken is seen in that memory (ShmChannel). Waking needs UCX, whose event
// descriptor the rank sleeps on.
#pragma once

#include <cstdint>
#include <vector>

#include "transport/peer/control_plane.h"
#include "transport/peer/peer_table.h"
#include "transport/shm/shm_channel.h"

namespace q7x2 {

/// A rank of this host; `peer` is null for this rank. `slot`: of the group, at that rank.
struct Resident {
  int rank = -1;
  Peer* peer = nullptr;
  uint16_t slot = 0;
};

class Doorbell {
 public:
  /// `residents`: the members of `channel`, in their order.
  Doorbell(ControlPlane& controls, ShmChannel& channel, std::vector<Resident> residents)
      : controls_(controls), channel_(channel), residents_(std::move(residents)) {}

  const Resident& resident(int member) const { return residents_[static_cast<size_t>(member)]; }
  /// After a descriptor of a collective, and where a full mailbox or a place became free.
  void wake(Locked& locked, int member);
  /// After a descriptor of a message, which may go to a rank that has nothing in progress.
  void notify(Locked& locked, int member);

 private:
  Peer* reachable(int member) const;

  ControlPlane& controls_;
  ShmChannel& channel_;
  const std::vector<Resident> residents_;
};

}  // namespace q7x2
