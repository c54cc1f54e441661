// PeerMemberMonitor: the MemberMonitor of a process, by what its PeerTable knows.
//
// A process that joins is watched from the moment its peer info is read. For new_group the members
// are known from the groups that this process is in, and are watched already: by pidfds, by the
// heartbeat connections of those groups' trees, and by those to whoever it talks to. A member that
// a group has called failed is called once, so that each rank knows for itself whether its process
// has ended.
//
// A connection that broke is no loss, because the new group will have another one.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/bootstrap/member_monitor.h"
#include "transport/peer/peer_info.h"

namespace q7x2 {

class Group;
class Locked;
class Runtime;

class PeerMemberMonitor final : public MemberMonitor {
 public:
  /// `job_ranks`: what the job calls the members of the new group, by rank; empty: nobody knows.
  explicit PeerMemberMonitor(const std::vector<uint64_t>& job_ranks);

  void watch(int rank, const std::string& peer_info, const std::string& own,
             bool also_far) override;
  void forget() override { joined_.clear(); }
  std::vector<Loss> losses() override;
  void ask(const std::vector<int>& ranks) override;
  std::string late_behind(int rank) override;

 private:
  struct Watched {
    int rank = -1;
    uint64_t process = 0;
    std::string who;          ///< "rank 3 (pid 41 on host a)"
    bool was_silent = false;  ///< before the new group began
  };

  void add_job(const std::vector<uint64_t>& job_ranks);
  void look(const Watched& watched, bool is_of_job);
  /// The group in which a member of the job can be asked; null: there is none.
  Group* group_with(Locked& locked, uint64_t process) const;
  void hear(Locked& locked, const Watched& watched);

  std::shared_ptr<Runtime> runtime_;  // null: it is not there yet
  std::vector<Watched> job_;
  std::map<int, Watched> joined_;  // by rank
  uint64_t seen_ = 0;              // of PeerTable::num_losses
  bool is_new_ = true;             // somebody is watched since the last look
  std::vector<Loss> losses_;
  // By rank: since when it is asked, and its last answer that named somebody.
  struct Asked {
    std::chrono::steady_clock::time_point since;
    std::string late_behind;
  };
  std::map<int, Asked> asked_;
};

}  // namespace q7x2
