// GroupTable: the groups of this process, by slot, and what each of them must be told.
//
// A slot is the number of a group at this process (transport/ucx/tag.h). It is reserved before the
// ranks know each other; control messages that arrive for it are kept until its group opens.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <unordered_map>
#include <vector>

#include "transport/peer/control.h"
#include "transport/peer/control_plane.h"
#include "transport/peer/peer_table.h"
#include "transport/ucx/reactor.h"

namespace q7x2 {

class Group;

class GroupTable {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  GroupTable(Reactor& reactor, PeerTable& peers, ControlPlane& controls);
  GroupTable(const GroupTable&) = delete;
  GroupTable& operator=(const GroupTable&) = delete;

  /// A free slot. Throws Error(kInvalidArgument) if there is none.
  int reserve(Locked& locked);
  /// The slot's group is there: from here on it hears of failures and messages, and of those that
  /// came before.
  void open(Locked& locked, int slot, Group& group);
  /// Frees the slot, whether its group was opened or not; `ended_late`: because a member was late.
  void close(Locked& locked, int slot, bool ended_late);
  /// What the job calls the group's members, by rank; empty: the same. A later group of the job
  /// that needs one of them whose process has ended is refused. Takes the lock.
  void set_job_ranks(const Group& group, std::vector<uint64_t> job_ranks);
  /// The slot's group has failed because of `culprit`; null: because of no member.
  void failed(Locked&, int slot, Peer* culprit) {
    slots_[static_cast<size_t>(slot)].culprit = culprit;
  }
  /// Of the last group that was closed.
  bool ended_late(Locked&) const { return ended_late_; }

  /// Gives the control messages that have arrived to their groups. False: there were none.
  bool deliver(Locked& locked);
  /// The groups of a peer that died fail.
  void peer_died(Locked& locked, Peer& peer);
  /// Nothing arrives any more from other processes of this host: groups that need it fail.
  void lose_host(Locked& locked, const Error& error);
  /// This process could not go on in the middle of anything, so all groups fail.
  void fail_all(Locked& locked, const std::exception& exception);
  /// The processes of the job's ranks, as far as the groups of the job have them as members.
  std::unordered_map<uint64_t, Peer*> job_members(Locked& locked) const;
  /// The group of all ranks of the job, by their ranks in the job; null: there is none, or the job
  /// has given its ranks other names since.
  Group* default_group(Locked& locked) const;
  /// Members of groups that have failed because these members failed, as this rank found or heard.
  std::vector<Peer*> failed_members(Locked& locked) const;
  /// The job gives its ranks other names: no member is found by its old one any more.
  void forget_job_ranks(Locked& locked);
  /// A group that has not failed and has this process as a member; null: there is none.
  Group* find_common(Locked& locked, uint64_t process) const;
  /// The process because of which the program does not go on in some group; null: there is none, as
  /// far as this is known.
  const Peer* awaited_peer(Locked& locked) const;
  /// Now and then: groups look whether their ranks disagree.
  void housekeep(Locked& locked, TimePoint now);
  /// Without the lock: this rank begins nothing more in `group`; null: in any group.
  void say_last_call(Group* group);
  /// Without the lock, at the end of the process: every group leaves in good order.
  void leave_all();

  // Groups that expect messages in shared memory.

  /// Whether the memory of the slot's group must be looked at from now on.
  void set_sharing(Locked& locked, int slot, bool is_needed);
  /// Looks at it. True: something happened.
  bool progress_sharing(Locked& locked);
  /// A rank of this host has rung for the slot. False: there is no group to look at.
  bool hear_ring(Locked& locked, int slot);
  /// Tells the other ranks that they must wake this process, or no more.
  void set_asleep(Locked& locked, bool asleep);

 private:
  struct Slot {
    bool is_taken = false;
    Group* group = nullptr;
    Peer* culprit = nullptr;     ///< because of whom the group has failed
    bool has_lost_mail = false;  ///< while it had no group
    std::optional<std::vector<uint64_t>> job_ranks =
        std::nullopt;  ///< empty: in no job, or its names are void
  };

  void handle(Locked& locked, const Control& control);
  void handle_guarded(Locked& locked, const Control& control);
  static void member_died(Locked& locked, Group& group, const Peer& peer);

  Reactor& reactor_;
  PeerTable& peers_;
  ControlPlane& controls_;
  std::vector<Slot> slots_;
  std::vector<Group*> open_;
  int next_ = 0;
  bool ended_late_ = false;
  std::vector<Control> early_;  // for slots without a group
  std::vector<Group*> sharing_;
  bool asleep_ = false;
};

}  // namespace q7x2
