// GroupTable: the groups of this process, by slot; passes events and messages to them.
//
// A slot is the number of a group in this process (transport/ucx/tag.h). It is reserved before the
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
  /// From now on the slot's group is told of failures and messages, including earlier ones.
  void open(Locked& locked, int slot, Group& group);
  /// Frees the slot, whether its group was opened or not. `ended_late`: it ended because a member
  /// was late.
  void close(Locked& locked, int slot, bool ended_late);
  /// The job's names of the group's members, by rank; empty: they equal the ranks. If a later group
  /// of the job needs a member whose process has ended, it is refused. Takes the lock.
  void set_job_ranks(const Group& group, std::vector<uint64_t> job_ranks);
  /// The slot's group has failed because of `culprit`; null: because of no member.
  void failed(Locked&, int slot, Peer* culprit) {
    slots_[static_cast<size_t>(slot)].culprit = culprit;
  }
  /// Whether the group that was closed last ended because a member was late.
  bool ended_late(Locked&) const { return ended_late_; }

  /// Passes the control messages that have arrived to their groups. Returns false if there were
  /// none.
  bool deliver(Locked& locked);
  /// A peer has died: its groups fail.
  void peer_died(Locked& locked, Peer& peer);
  /// Messages from other processes of this host cannot arrive any more: groups that need them fail.
  void lose_host(Locked& locked, const Error& error);
  /// An unknown operation of this process has failed, so all groups fail.
  void fail_all(Locked& locked, const std::exception& exception);
  /// The processes of the job's ranks, as far as they are members of the job's groups.
  std::unordered_map<uint64_t, Peer*> job_members(Locked& locked) const;
  /// The group of all ranks of the job, by their ranks in the job; null: there is none, or the job
  /// has given its ranks other names since.
  Group* default_group(Locked& locked) const;
  /// Members because of which groups have failed, as this rank found or was told.
  std::vector<Peer*> failed_members(Locked& locked) const;
  /// The job renames its ranks: no member is found by its old name any more.
  void forget_job_ranks(Locked& locked);
  /// A group that has not failed and has this process as a member; null if there is none.
  Group* find_common(Locked& locked, uint64_t process) const;
  /// The process that keeps the program waiting in some group; null: none that is known.
  const Peer* awaited_peer(Locked& locked) const;
  /// Called now and then: groups check whether their ranks disagree.
  void housekeep(Locked& locked, TimePoint now);
  /// Called without the lock: this rank begins nothing more in `group`; null: in any group.
  void say_last_call(Group* group);
  /// Called without the lock, at the end of the process: every group leaves in good order.
  void leave_all();

  // Groups that expect messages in shared memory.

  /// Says whether the memory of the slot's group must be polled from now on.
  void set_sharing(Locked& locked, int slot, bool is_needed);
  /// Polls the memory of these groups. Returns true if anything happened.
  bool progress_sharing(Locked& locked);
  /// A rank of this host rings for the slot. Returns false if the slot has no group with shared
  /// memory.
  bool hear_ring(Locked& locked, int slot);
  /// Says to the other ranks whether they must wake this process.
  void set_asleep(Locked& locked, bool asleep);

 private:
  struct Slot {
    bool is_taken = false;
    Group* group = nullptr;
    Peer* culprit = nullptr;     ///< the member because of which the group has failed
    bool has_lost_mail = false;  ///< a control message was lost before its group opened
    std::optional<std::vector<uint64_t>> job_ranks =
        std::nullopt;  ///< empty: it is in no job, or the names are no longer valid
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
