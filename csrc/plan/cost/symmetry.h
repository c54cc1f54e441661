// Symmetry: ranks that stand for others, because turning all ranks changes nothing.
//
//   0 -> 1 -> 2 -> 3 -> 4 -> 5 -> 0     A ring of six ranks in two racks looks the same when it is
//   [ rack 0 ]      [ rack 1 ]          turned by three. So ranks 0, 1 and 2 stand for all.
//
// Who does the same at the same times need be simulated once. Ranks, hosts, racks, machines and
// resources fall into orbits: what the turns make of one of them. Of each orbit one is simulated,
// with the messages that its peers send to it, each of which is another turn of a message that is
// simulated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "plan/cost/site.h"
#include "plan/ir/schedule.h"

namespace q7x2 {

class Symmetry {
 public:
  /// The symmetry of a Schedule with that turn: the smallest multiple that leaves the Fabric as it
  /// is, too; empty if there is none. No host, machine or
  /// rack may be turned into itself before all of them are, unless there is only one rack. With a
  /// turn by all ranks each of them stands for itself.
  static std::optional<Symmetry> find(const Site& site, Schedule::Turn turn);

  /// Ranks from 0 on that stand for all.
  size_t num_ranks() const { return turn_; }
  /// The one that a rank is a turn of.
  uint32_t of_rank(int rank) const { return static_cast<uint32_t>(rank) % turn_; }
  /// `peer`, as seen by the rank that stands for `rank`.
  uint32_t seen_from(int rank, uint32_t peer) const {
    const uint32_t turned = static_cast<uint32_t>(rank) - of_rank(rank);
    return flips_ ? peer ^ turned : (peer + all_ - turned) % all_;
  }
  /// What a turn leaves as it is of a rank and its peer.
  uint32_t distance(uint32_t rank, uint32_t peer) const {
    return flips_ ? peer ^ rank : (peer + all_ - rank) % all_;
  }
  /// The number of a message to `rank`, as seen by the rank that stands for it.
  uint32_t message_seen_from(int rank, uint32_t message) const {
    if (!messages_of_parts_) return message;
    const uint32_t part = message % all_;
    return message - part + seen_from(rank, part);
  }
  uint32_t of_resource(size_t resource) const { return resources_[resource]; }
  size_t of_machine(size_t machine) const { return machines_[machine]; }

 private:
  Symmetry(Schedule::Turn turn, int all)
      : turn_(static_cast<uint32_t>(turn.ranks)),
        all_(static_cast<uint32_t>(all)),
        messages_of_parts_(turn.messages_of_parts),
        flips_(turn.flips) {}
  bool fits(const Site& site);
  /// Fills `resources_`, given the first host and the first rack of each orbit. False if resources
  /// of one orbit have different rates.
  bool share_resources(const Site& site, const std::vector<size_t>& host,
                       const std::vector<size_t>& rack);

  uint32_t turn_;
  uint32_t all_;  // ranks
  bool messages_of_parts_;
  bool flips_;
  std::vector<uint32_t> resources_;
  std::vector<size_t> machines_;
};

}  // namespace q7x2
