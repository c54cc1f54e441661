// GroupLinks: the connections of a group's rank to the other ranks.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "transport/group/group_device_path.h"
#include "transport/group/membership.h"
#include "transport/peer/control.h"
#include "transport/task/task.h"

namespace q7x2 {

class Departure;

class GroupLinks {
 public:
  /// `slot`: the group's slot in this process. The other arguments must outlive the links.
  GroupLinks(int slot, const Membership& members, const Departure& departure);
  GroupLinks(const GroupLinks&) = delete;
  GroupLinks& operator=(const GroupLinks&) = delete;

  /// Opens the connection to `rank`, and sends a hello. Returns false if the rank cannot be
  /// reached.
  bool connect(Locked& locked, int rank);
  /// Connects to every peer.
  void connect_all(Locked& locked);
  /// Sends a hello to `rank`, so that it connects too.
  void greet(Locked& locked, int rank);
  /// UCX's transports of the connection to `rank`, for example {"posix"}; empty before first use.
  /// Throws Error(kInvalidArgument) for a rank that is not in the group.
  std::vector<std::string> transports(Locked& locked, int rank) const;

  /// From now on collectives send to and receive from `rank` over its private link. To be called by
  /// both ranks, before the first collective. Throws Error(kInternal) if there is no such link.
  void use_private_link(Locked& locked, int rank);
  /// From now on everything to and from `rank` goes over many connections, if it may (`may_stream`)
  /// and no private link is used. To be called by both ranks with the same `round_trip` in seconds,
  /// before the first collective.
  void use_streams(Locked& locked, int rank, double round_trip);
  /// The link that collectives use to `rank`.
  Wire wire(int rank) const { return wires_[static_cast<size_t>(rank)]; }
  /// The link of everything else: UCX over the shared network, or many connections.
  Wire main_wire(int rank) const {
    return wire(rank) == Wire::kStream ? Wire::kStream : Wire::kShared;
  }
  /// The other link to `rank` that messages may have gone over, if there is one.
  std::optional<Wire> other_wire(int rank) const;
  /// How uncompressed tensors on a device travel; equal on all ranks.
  const DevicePathOfGroup& device_path() const { return device_path_; }

  /// Makes a control message from this rank to `rank`, and sends one.
  Control control_to(int rank, ControlType type) const;
  void send(Locked& locked, int rank, const Control& control);
  /// Whether `rank` is a member that is alive and has not left.
  bool is_member(Locked& locked, int rank) const;
  /// Sends `error` to `rank`: as an abort of the group, or of one collective.
  void tell(Locked& locked, int rank, const Error& error,
            std::optional<uint64_t> failed_call = std::nullopt);
  /// The ranks that this rank tells of a failure: its neighbours and those that it is connected to,
  /// without those that cannot be reached. See group_failure.h: each rank that hears of it does the
  /// same.
  std::set<int> audience(Locked& locked);

  /// A request to or from `rank` failed; -1: from any rank.
  void request_failed(Locked& locked, Task& task, int rank, Wire wire, ucs_status_t status);
  /// Whether all pending requests of a task belong to processes that have ended.
  bool waits_for_the_dead(Locked& locked, Task& task) const;
  /// A task has been over for long, but a peer still uses its memory. Closes the connection by
  /// force to end that, which fails all groups that use the connection.
  void cut_off(Locked& locked, Task& task);

 private:
  bool is_connected(int rank) const;

  const int slot_;
  const Membership& members_;
  const Departure& departure_;
  const DevicePathOfGroup device_path_;
  std::vector<Wire> wires_;  // by rank
};

/// Whether messages between two processes of different hosts may go over many connections:
/// whether both can, and the round trip takes long or one of the two wants it for all hosts.
/// `round_trip`: seconds.
bool may_stream(const PeerInfo& one, const PeerInfo& other, double round_trip);

/// Writes to the log which transports UCX uses to reach `rank`.
void log_transports(const Membership& members, int rank,
                    const std::vector<std::string>& transports);

}  // namespace q7x2
