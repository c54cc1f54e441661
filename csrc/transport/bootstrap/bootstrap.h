// Bootstrap: how the ranks of a new group come to know each other.
//
//   StoreBootstrap   the first group of a job: the ranks have nothing but a store
//   PeerBootstrap    processes that know each other: new_group, shrink, reconfigure, servers
//
// WireUp makes the group by one of them. All ranks call the same functions in the same order.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"

namespace q7x2 {

class Bootstrap {
 public:
  /// Called now and then while a call waits; throws when the wait is pointless.
  using Check = std::function<void()>;

  struct Met {
    std::vector<std::string> all;  ///< what each rank gave, by rank
    std::string decision;          ///< empty: nobody decided for all
  };
  /// What the first exchange does with what all gave.
  struct Hooks {
    /// On each rank. If the ranks meet through a store, it is called before any of them returns, so
    /// all may rely on it.
    std::function<void(const std::vector<std::string>& all)> prepare;
    /// On rank 0, if one rank learns of all first: what all ranks shall know beside what they gave.
    std::function<std::string(const std::vector<std::string>& all)> decide;
  };

  virtual ~Bootstrap() = default;

  /// The first exchange, in which the ranks find each other: gives `mine`, a peer info, to all. It
  /// is sealed on its way, as what is exchanged later (published.h). Throws Error: kTimeout if
  /// ranks are missing, kMismatch if processes disagree about who is which rank or if a seal is not
  /// that of the job, kPeerFailed if a process ended, else what another rank told by `fail`.
  virtual Met meet(const std::string& mine, const Hooks& hooks) = 0;
  /// Gives `mine` to all ranks and returns what each gave, by rank. `what` names the exchange, the
  /// same on all ranks and once per group. Throws like `meet`.
  virtual std::vector<std::string> exchange(const std::string& what, const std::string& mine,
                                            const Check& check) = 0;
  /// Waits for something that is exchanged otherwise: until `missing`, which names a rank that is
  /// waited for and is called now and then, returns -1. Throws like `meet`.
  virtual void wait_for(const std::function<int()>& missing, const Check& check) = 0;
  /// The last call of every rank that has made its part of the group. Throws like `meet`.
  virtual void finish(const Check& check) = 0;
  /// Tells the other ranks why there will be no group, as far as they are there.
  virtual void fail(const Error& reason) noexcept = 0;
};

/// "rank 3 of 4 could not make the group 'x'": begins the errors of a rank that fails.
std::string cannot_make(int rank, int size, const std::string& group);
/// `error`, behind `title` and because of `rank` unless it begins like that already. `title`: see
/// `cannot_make`.
Error titled(const Error& error, const std::string& title, int rank);
/// What `rank` tells the others if its own code throws: kAborted, with the first line of the text.
Error aborted_by(const std::exception& exception, int rank);

}  // namespace q7x2
