// StoreMeeting: how the ranks of a new group meet through a c10d store. It has these parts:
//
//   C10dStore          calls the store, and checks for other events while an answer is overdue
//   StoreBootstrap     the protocol
//   PeerMemberMonitor  watches the processes that take part
//   Announcements      say which group a missing rank makes instead
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/c10d_store.h"
#include "transport/bootstrap/peer_member_monitor.h"
#include "transport/bootstrap/store_bootstrap.h"

namespace q7x2 {

class StoreMeeting {
 public:
  struct Options {
    int rank = 0;
    int size = 1;
    std::string group;  ///< the name of the group
    std::chrono::milliseconds timeout{0};
    /// By rank: its rank in the job; empty: the same.
    std::vector<uint64_t> job_ranks;
    /// Whether the ranks are those of the default group.
    bool in_job = false;
    std::function<void(int)> waits_for = [](int) {};  ///< see StoreBootstrap::Options
  };

  /// Runs `make`, which makes the group with this rank's bootstrap. Its second argument is the
  /// store without any prefixes. If `make` throws, the other ranks are told why, by `abort` and
  /// through the store. The exception continues at once, and a FailureLinger stays until the others
  /// have read it. Throws Error(kPeerFailed) without calling `make` if a member is known to have
  /// ended.
  static void run(const c10::intrusive_ptr<c10d::Store>& store, const Options& options,
                  const std::function<void(Bootstrap&, KeyStore&)>& make,
                  const std::function<void(const Error&)>& abort);

  StoreMeeting(const c10::intrusive_ptr<c10d::Store>& store, const Options& options);
  StoreMeeting(const StoreMeeting&) = delete;
  StoreMeeting& operator=(const StoreMeeting&) = delete;

 private:
  /// Writes the name of the group. It is the first call to the store.
  void announce();
  std::string explain_missing(int rank) const;
  void fail(const Error& error);
  /// Stays until the others have read the failure, even if some never arrive. Drops `runtime`
  /// during that time.
  void stay_and_end(std::shared_ptr<Runtime>& runtime, const std::function<void()>& check);

  const Options options_;
  C10dStore keys_;
  C10dStore root_;
  std::unique_ptr<PeerMemberMonitor> monitor_;  // null after a failure: it holds the runtime
  StoreBootstrap bootstrap_;
  std::unique_ptr<Announcements> announcements_;
};

}  // namespace q7x2
