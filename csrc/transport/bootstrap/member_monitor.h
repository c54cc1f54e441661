// MemberMonitor: whether the processes that a new group needs are alive, while its ranks meet.
//
// Until the epoch of a StoreBootstrap is committed, each rank watches its neighbours in the tree
// from the moment it finds their peer infos: a parent its children, and each child of rank 0 rank
// 0. Ranks on rank 0's host watch rank 0 too. A process of this host is watched by a pidfd, a
// process of another host by a heartbeat connection. Once the group is open, it watches the same
// neighbours for as long as it lives (WireUp::open), and others as soon as it talks to them.
//
// What follows from a loss depends on who finds it, because the store may hold peer infos of dead
// processes of an earlier attempt:
//
//   rank 0        The peer info was published under an epoch that rank 0 itself has opened, so its
//                 process has died since: the group fails.
//   other ranks   If the process was alive after this rank began to watch it, the group fails. Else
//                 the peer info may be old: the rank reports it to rank 0 and waits. A rank 0 that
//                 was dead from the beginning has a successor, who opens the next epoch.
//
// Rank 0 tells the others through the store. If rank 0 itself has died, those who have seen that
// make it the state of the epoch. A rank heeds that if it had joined before.
//
// What the watching costs, with 32 branches:
//
//   ranks                    64       1,024    4,096
//   connections of rank 0    32 + 32  32 + 32  32 + 32   made by it, made by others
//   connections of others    at most 33 + 1
//   pause between questions  10 ms    20 ms    82 ms
//   questions to the store   6,400    50,000   50,000    per second, if all ranks wait
//
// For new_group the processes are known before they join, from the default group
// (peer_member_monitor.h). A rank that does not come may itself wait in a group that both are in.
// So it is asked for whom, and messages name the rank that is really late.
#pragma once

#include <string>
#include <vector>

namespace q7x2 {

class MemberMonitor {
 public:
  struct Loss {
    int rank = -1;                ///< in the new group
    std::string reason;           ///< "rank 3 (pid 41 on host a) failed: its process has ended"
    bool was_seen_alive = false;  ///< after this process had met it
  };

  virtual ~MemberMonitor() = default;
  /// Watches the process that has joined as `rank` with `peer info`, instead of one that was
  /// watched as this rank before. A process of another host is watched only with `also_far`,
  /// because that takes a connection. `own`: this rank's peer info. A peer info that cannot be read
  /// is not watched: the ranks that use the peer infos later say what is wrong with it.
  virtual void watch(int rank, const std::string& peer_info, const std::string& own,
                     bool also_far) = 0;
  /// Watches nobody whom `watch` has named.
  virtual void forget() = 0;
  /// Those of all that are watched which are lost. Called often; costs little if there are none.
  virtual std::vector<Loss> losses() = 0;
  /// Asks the processes of `ranks`, which are late, whom they wait for elsewhere. Called now and
  /// then while the wait is long.
  virtual void ask(const std::vector<int>& ranks) = 0;
  /// Who keeps `rank` waiting, as it has said since it was asked, to be added to a message that it
  /// is late: "; rank 1 (pid 41 on host a) of group 'default_pg' is late: its host answers". Empty:
  /// nobody, as far as it has said.
  virtual std::string late_behind(int rank) = 0;
};

}  // namespace q7x2
