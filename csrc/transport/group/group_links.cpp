#include "transport/group/group_links.h"

#include <algorithm>

#include "base/log.h"
#include "transport/group/departure.h"
#include "transport/group/group_failure.h"
#include "transport/peer/control_plane.h"
#include "transport/peer/peer_table.h"

namespace q7x2 {
namespace {

// Seconds. One connection of TCP carries little over such a distance.
constexpr double kFar = 0.003;

}  // namespace

GroupLinks::GroupLinks(int slot, const Membership& members, const Departure& departure)
    : slot_(slot),
      members_(members),
      departure_(departure),
      device_path_(device_path_of(members.peer_infos())),
      wires_(static_cast<size_t>(members.world_size()), Wire::kShared) {}

void log_transports(const Membership& members, int rank,
                    const std::vector<std::string>& transports) {
  if (!logs(Level::kDebug)) return;
  log(Level::kDebug, "group '" + members.name() + "': rank " + std::to_string(members.rank()) +
                         " talks to " + members.describe(rank) + " over " + join_list(transports));
}

bool GroupLinks::is_connected(int rank) const {
  const Peer& peer = members_.peer(rank);
  return main_wire(rank) == Wire::kStream ? peer.stream != nullptr : peer.shared.is_open();
}

bool GroupLinks::connect(Locked& locked, int rank) {
  Peer& peer = members_.peer(rank);
  const bool fresh = !is_connected(rank);
  if (main_wire(rank) == Wire::kStream ? !locked.peers().connect_stream(locked, peer)
                                       : !locked.peers().connect(locked, peer)) {
    return false;
  }
  if (fresh) {
    greet(locked, rank);
    if (logs(Level::kDebug) && peer.shared.is_open())
      log_transports(members_, rank, peer.shared.endpoint().transports());
  }
  return true;
}

void GroupLinks::connect_all(Locked& locked) {
  // Each rank starts with its successor, so that no rank is contacted by all ranks at once.
  for (int step = 1; step < members_.world_size(); ++step) {
    connect(locked, (members_.rank() + step) % members_.world_size());
  }
}

void GroupLinks::greet(Locked& locked, int rank) {
  send(locked, rank, control_to(rank, ControlType::kHello));
}

std::vector<std::string> GroupLinks::transports(Locked&, int rank) const {
  if (rank < 0 || rank >= members_.world_size()) {
    throw Error(ErrorCode::kInvalidArgument, "rank " + std::to_string(rank) +
                                                 " is not in a group of " +
                                                 std::to_string(members_.world_size()));
  }
  const bool is_open = rank != members_.rank() && members_.peer(rank).shared.is_open();
  return is_open ? members_.peer(rank).shared.endpoint().transports() : std::vector<std::string>();
}

void GroupLinks::use_private_link(Locked&, int rank) {
  Peer& peer = members_.peer(rank);
  if (!peer.rail.exists()) {
    throw Error(ErrorCode::kInternal, "there is no private link to " + members_.describe(rank));
  }
  peer.relies_on_rail = true;
  wires_[static_cast<size_t>(rank)] = Wire::kPrivate;
}

bool may_stream(const PeerInfo& one, const PeerInfo& other, double round_trip) {
  if (is_nat_between(one, other)) return true;
  const auto [less, more] = std::minmax(one.streams, other.streams);
  return one.host_key != other.host_key && one.stream_port != 0 && other.stream_port != 0 &&
         less != StreamChoice::kNever && (more == StreamChoice::kAlways || round_trip >= kFar);
}

// Memory of devices goes through UCX.
void GroupLinks::use_streams(Locked&, int rank, double round_trip) {
  Wire& wire = wires_[static_cast<size_t>(rank)];
  if (wire == Wire::kShared && !device_path_.is_direct &&
      may_stream(members_.peer_info(members_.rank()), members_.peer_info(rank), round_trip) &&
      !members_.peer(rank).same_host) {
    wire = Wire::kStream;
    members_.peer(rank).relies_on_stream = true;
  }
}

std::optional<Wire> GroupLinks::other_wire(int rank) const {
  const Peer& peer = members_.peer(rank);
  if (wire(rank) == Wire::kPrivate && peer.rail.is_open()) return Wire::kPrivate;
  // What was said before it was known how far the rank is.
  if (wire(rank) == Wire::kStream && peer.shared.is_open()) return Wire::kShared;
  return std::nullopt;
}

// ------------------------------------------------------------------------------ control messages

Control GroupLinks::control_to(int rank, ControlType type) const {
  Control control;
  control.type = type;
  control.slot = members_.peer_info(rank).slot;
  control.sender_slot = static_cast<uint16_t>(slot_);
  control.sender = members_.rank();
  control.receiver = rank;
  return control;
}

void GroupLinks::send(Locked& locked, int rank, const Control& control) {
  locked.controls().send(locked, members_.peer(rank), control, main_wire(rank));
}

bool GroupLinks::is_member(Locked&, int rank) const {
  return rank != members_.rank() && !departure_.has_left(rank) &&
         members_.peer(rank).life.is_alive();
}

void GroupLinks::tell(Locked& locked, int rank, const Error& error,
                      std::optional<uint64_t> failed_call) {
  Control control = control_to(rank, failed_call ? ControlType::kFailedCall : ControlType::kAbort);
  control.sequence = failed_call.value_or(0);
  control.code = error.code();
  control.subject = error.rank();
  control.text = error.what();
  send(locked, rank, control);
  // The message over the private link arrives after everything that was sent over this link before.
  if (wire(rank) == Wire::kPrivate) {
    locked.controls().send(locked, members_.peer(rank), control, Wire::kPrivate);
  }
}

std::set<int> GroupLinks::audience(Locked& locked) {
  const std::vector<int> nearby = neighbours(members_.rank(), members_.world_size());
  std::set<int> ranks(nearby.begin(), nearby.end());
  for (int r = 0; r < members_.world_size(); ++r) {
    if (r != members_.rank() && is_connected(r)) ranks.insert(r);
  }
  std::erase_if(ranks, [&](int r) { return !is_member(locked, r) || !connect(locked, r); });
  return ranks;
}

// ---------------------------------------------------------------------- requests that do not end

void GroupLinks::request_failed(Locked& locked, Task& task, int rank, Wire wire,
                                ucs_status_t status) {
  if (wire == Wire::kStream && rank >= 0 && !departure_.has_left(rank)) {
    const StreamPath* const path = members_.peer(rank).stream;
    const std::string why = path == nullptr ? "" : path->failure();
    locked.peers().suspect(locked, members_.peer(rank),
                           why.empty() ? "its connections were closed" : why);
  } else if (wire == Wire::kPrivate && !members_.peer(rank).relies_on_rail) {
    task.fail(locked, Error(ErrorCode::kTransport,
                            task.name() + ": the private link to " + members_.describe(rank) +
                                " does not work: " + ucs_status_string(status)));
  } else if (rank >= 0 && departure_.has_left(rank)) {
    task.stranded(locked, left_error(members_, rank, task.name()));
  } else if (rank >= 0) {
    locked.peers().suspect(locked, members_.peer(rank), ucs_status_string(status));
  } else {
    task.fail(locked, Error(ErrorCode::kTransport,
                            task.name() + ": UCX reported " + ucs_status_string(status)));
  }
}

// What the dead peers had sent was received before their connections were closed.
bool GroupLinks::waits_for_the_dead(Locked& locked, Task& task) const {
  for (const PendingRequest* p = task.record(locked).requests.first(); p != nullptr; p = p->next) {
    if (p->peer < 0) return false;
    const Peer& peer = members_.peer(p->peer);
    if (!peer.life.has_ended() || !peer.life.is_dead()) return false;
  }
  return true;
}

// If a receive accepts any rank, its sender is unknown.
void GroupLinks::cut_off(Locked& locked, Task& task) {
  std::set<int> ranks;
  for (const PendingRequest* p = task.record(locked).requests.first(); p != nullptr; p = p->next) {
    if (p->peer >= 0) {
      ranks.insert(p->peer);
    } else {
      for (int r = 0; r < members_.world_size(); ++r) {
        if (r != members_.rank()) ranks.insert(r);
      }
    }
  }
  bool are_all_dead = true;
  for (const int r : ranks) {
    are_all_dead = are_all_dead && members_.peer(r).life.is_dead();
    locked.peers().cut_off(locked, members_.peer(r),
                           "it still used the memory of a call that had ended");
  }
  // If a connection breaks while a message arrives, UCX keeps its receive for ever. All connections
  // are closed, so nothing can write to the memory of these receives any more.
  if (are_all_dead) {
    task.record(locked).over_since = TimePoint::min();
    task.settle(locked);
  }
}

}  // namespace q7x2
