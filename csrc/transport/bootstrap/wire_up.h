// WireUp: how the ranks of a new group come to know each other.
//
//   1. a slot in this process, and a peer info that says how to reach it
//   2. exchange: the peer infos of all ranks, which are verified; they are the Membership
//   3. the group opens: from here on it hears of failures
//   4. ranks of one host map each other's memory: the ShmMatcher
//   5. hosts with a network beside the shared one exchange addresses for private links
//
// Nothing here decides how the ranks exchange: that is the Rendezvous.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transport/peer/peer_info.h"
#include "transport/shm/shm_channel.h"

namespace q7x2 {

class Group;
class Membership;
class Runtime;

/// Gives `mine` to all ranks and returns what each gave, by rank. Blocks, with a deadline of its
/// own. `what` names the exchange, the same on all ranks and once per group. `check` is called now
/// and then, and throws when the exchange is pointless. `prepare`, if there is one, is called with
/// the result. If the ranks meet through a store, that is before any rank returns from the first
/// exchange, so all may rely on what it prepares. What the ranks give is sealed on its way
/// (published.h); the exchange throws Error(kMismatch) where a seal is not that of the job.
using Prepare = std::function<void(const std::vector<std::string>& all)>;
using Exchange = std::function<std::vector<std::string>(
    const std::string& what, const std::string& mine, const std::function<void()>& check,
    const Prepare& prepare)>;

/// Blocks until `missing`, which names a rank that is waited for, returns -1. It is called now and
/// then, like `check`, which throws when the wait is pointless. Has a deadline of its own.
using Await =
    std::function<void(const std::function<int()>& missing, const std::function<void()>& check)>;

/// Those of a meeting that has `exchange` and `wait_for`, and that must outlive them.
template <typename Meeting>
Exchange exchange_of(Meeting& meeting) {
  return [&meeting](const std::string& what, const std::string& mine,
                    const std::function<void()>& check, const Prepare& prepare) {
    return meeting.exchange(what, mine, check, prepare);
  };
}
template <typename Meeting>
Await await_of(Meeting& meeting) {
  return [&meeting](const std::function<int()>& missing, const std::function<void()>& check) {
    meeting.wait_for(missing, check);
  };
}

/// Makes a group with WireUp, and returns it open. For the arguments see WireUp.
std::shared_ptr<Group> make_group(Runtime& runtime, int rank, int world_size,
                                  const std::string& name, const Exchange& exchange,
                                  const Await& await, bool eager,
                                  const std::string& algorithms = {},
                                  DevicePath device_path = DevicePath::kAuto);

/// Connects to every peer. Takes the reactor's lock.
void connect_all(Group& group);
/// While the group is made, this rank waits for `rank`: see CallAgreement. Takes the reactor's
/// lock.
void set_awaited(Group& group, int rank);

class WireUp {
 public:
  /// `exchange` and `await` must outlive it. Throws Error(kInvalidArgument) for a rank or a size
  /// that cannot be.
  WireUp(Runtime& runtime, int rank, int world_size, const std::string& name,
         const Exchange& exchange, const Await& await);
  ~WireUp();
  WireUp(const WireUp&) = delete;
  WireUp& operator=(const WireUp&) = delete;

  /// Once. Ranks of one host map each other's memory; the others connect on first use, or at once
  /// with `eager`. `algorithms`: to which this rank's collectives are confined. `device_path`: as
  /// this rank was told. Throws Error(kMismatch) if the ranks disagree about that or about the
  /// group.
  std::shared_ptr<Group> run(bool eager, const std::string& algorithms, DevicePath device_path);

 private:
  std::vector<std::string> exchange(const std::string& what, const std::string& mine,
                                    const std::function<void()>& check) {
    return exchange_(what, mine, check, {});
  }
  /// Lets the ranks of these peer infos connect. What is wrong with a peer info is found later.
  void admit(const std::vector<std::string>& peer_infos);
  PeerInfo make_peer_info(const std::string& algorithms, DevicePath device_path);
  /// Throws Error(kMismatch) unless they are the peer infos of one group, and this rank's among
  /// them.
  std::vector<PeerInfo> verified(const std::vector<std::string>& bytes) const;
  Membership meet(std::vector<PeerInfo> peer_infos);
  /// From here on the group hears of failures and messages.
  void open(Group& group);
  /// Keeps in `renewed_` what the ranks say of their connections to this one.
  void renew_connections(const Membership& members, std::vector<PeerInfo> peer_infos);
  /// Null where there is no shared memory to be had: the messages go through UCX's transports.
  std::unique_ptr<ShmChannel> new_channel(int members);
  void share_memory(Group& group);
  /// The keys of all ranks' memory, by rank; empty where a rank has none.
  std::vector<std::string> memory_keys(Group& group);
  void map_memory(Group& group, const std::vector<std::string>& keys);
  void find_private_links(Group& group);

  Runtime& runtime_;
  const int rank_;
  const int world_size_;
  const std::string name_;
  const Exchange& exchange_;
  const Await& await_;
  const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  PeerInfo mine_;
  std::vector<PeerInfo::Renewed> renewed_;  // by rank
  int slot_ = -1;                           // until the group has it
  std::unique_ptr<ShmChannel> channel_;     // until the group has it
  std::string no_channel_;                  // why there is none
};

}  // namespace q7x2
