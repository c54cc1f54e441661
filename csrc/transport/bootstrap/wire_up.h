// WireUp: how the ranks of a new group come to know each other.
//
//   1. a slot in this process, and a peer info that says how to reach it
//   2. exchange: the peer infos of all ranks, which are verified; they are the Membership
//   3. the group opens: from here on it hears of failures
//   4. ranks of one host map each other's memory: the ShmMatcher
//   5. hosts with a network beside the shared one exchange addresses for private links
//
// Nothing here decides how the ranks exchange: that is the Bootstrap.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transport/bootstrap/bootstrap.h"
#include "transport/peer/peer_info.h"
#include "transport/shm/shm_channel.h"

namespace q7x2 {

class Group;
class Membership;
class Runtime;

/// What a rank wants of a new group.
struct GroupTerms {
  bool eager = false;                          ///< connects to all ranks at once, not on first use
  std::string algorithms = {};                 ///< to which this rank's collectives are confined
  std::string attached_hook = {};              ///< Q7X2_ATTACH, which all ranks must agree on
  DevicePath device_path = DevicePath::kAuto;  ///< as this rank was told
  /// What the layers above say of this rank (PeerInfo::announcement).
  std::string announcement = {};
  /// On rank 0, if it learns of all ranks first: what all shall know. See Bootstrap::Hooks.
  std::function<std::string(const std::vector<PeerInfo>& all)> decide = {};
  /// Given what rank 0 has decided; empty: nobody has.
  std::function<void(std::string decision)> learn = [](const std::string&) {};
};

/// Makes a group with WireUp, and returns it open. For the arguments see WireUp.
std::shared_ptr<Group> make_group(Runtime& runtime, int rank, int world_size,
                                  const std::string& name, Bootstrap& bootstrap,
                                  const GroupTerms& terms = {});

/// Connects to every peer. Takes the reactor's lock.
void connect_all(Group& group);
/// While the group is made, this rank waits for `rank`: see CallAgreement. Takes the reactor's
/// lock.
void set_awaited(Group& group, int rank);

class WireUp {
 public:
  /// `bootstrap` and `terms` must outlive it. Throws Error(kInvalidArgument) for a rank or a size
  /// that cannot be.
  WireUp(Runtime& runtime, int rank, int world_size, const std::string& name, Bootstrap& bootstrap,
         const GroupTerms& terms);
  ~WireUp();
  WireUp(const WireUp&) = delete;
  WireUp& operator=(const WireUp&) = delete;

  /// Once. Ranks of one host map each other's memory. Throws Error(kMismatch) if the ranks disagree
  /// about their terms or about the group.
  std::shared_ptr<Group> run();

 private:
  /// Lets the ranks of these peer infos connect. What is wrong with a peer info is found later.
  void admit(const std::vector<std::string>& peer_infos);
  std::string decide(const std::vector<std::string>& peer_infos) const;
  PeerInfo make_peer_info();
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
  Bootstrap& bootstrap_;
  const GroupTerms& terms_;
  const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  PeerInfo mine_;
  std::vector<PeerInfo::Renewed> renewed_;  // by rank
  int slot_ = -1;                           // until the group has it
  std::unique_ptr<ShmChannel> channel_;     // until the group has it
  std::string no_channel_;                  // why there is none
};

}  // namespace q7x2
