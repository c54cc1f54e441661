// PeerMeeting: how the ranks of a new group of a job meet that know each other from its default
// group.
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
    std::vector<uint64_t> job_ranks;  ///< what the job calls them
    std::string scope;                ///< the same for all of the job
    int rank = 0;
    std::string group;  ///< its name
    std::chrono::milliseconds timeout{0};
  };

  /// The members of a new group, as the default group knows them; empty: there is no such group, or
  /// one of them is not in it. All members say the same. `scope`: learns what tells the default
  /// group from others.
  static std::vector<PeerInfo> members_of(Runtime& runtime, const std::vector<uint64_t>& job_ranks,
                                          std::string& scope);
  /// Runs `make`, which makes the group by this rank's bootstrap; it is also given the store below
  /// all prefixes. If it throws, the other ranks are told why, by `abort` and directly.
  static void run(Runtime& runtime, const c10::intrusive_ptr<c10d::Store>& store,
                  const Options& options, const std::function<void(Bootstrap&, KeyStore&)>& make,
                  const std::function<void(const Error&)>& abort);
};

}  // namespace q7x2
