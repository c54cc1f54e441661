// PeerMeeting: how the ranks of a new group meet if they already know each other from the job's
// default group. It needs these parts:
//
//   PeerBootstrap      the protocol
//   PeerMemberMonitor  watches the processes that take part
//   Announcements      say which group a missing rank makes instead
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "backend/c10d_store.h"
#include "transport/bootstrap/peer_bootstrap.h"
#include "transport/bootstrap/peer_member_monitor.h"
#include "transport/run/runtime.h"

namespace q7x2 {

class PeerMeeting {
 public:
  struct Options {
    std::vector<PeerInfo> members;    ///< by rank
    std::vector<uint64_t> job_ranks;  ///< their ranks in the job
    std::string scope;                ///< equal on all ranks of the job
    int rank = 0;
    std::string group;  ///< the name of the group
    std::chrono::milliseconds timeout{0};
  };

  /// The members of a new group, as the default group knows them. Empty if there is no default
  /// group, or if a member is not in it. Equal on all members. `scope`: set to a text that
  /// identifies the default group.
  static std::vector<PeerInfo> members_of(Runtime& runtime, const std::vector<uint64_t>& job_ranks,
                                          std::string& scope);
  /// Runs `make`, which makes the group with this rank's bootstrap. Its second argument is the
  /// store without any prefixes. If `make` throws, the other ranks are told why, by `abort` and by
  /// the bootstrap.
  static void run(Runtime& runtime, const c10::intrusive_ptr<c10d::Store>& store,
                  const Options& options, const std::function<void(Bootstrap&, KeyStore&)>& make,
                  const std::function<void(const Error&)>& abort);
};

}  // namespace q7x2
