// ProcessWatch: notices at once when processes of this host end, by their pidfds.
#pragma once

#include <optional>
#include <vector>

#include "base/owned_fd.h"

namespace q7x2 {

/// Whether a process of this host is stopped, by a signal or a debugger. False if nobody knows.
bool is_stopped(int pid);

class ProcessWatch {
 public:
  /// Throws Error(kTransport).
  ProcessWatch();

  /// Watches process `pid`, and calls it `who`. Returns nothing if it has ended already, and an
  /// invalid descriptor if it cannot be watched.
  std::optional<OwnedFd> watch(int pid, void* who) const;
  /// Watches no more. `pidfd`: from `watch`, valid or not.
  void forget(OwnedFd& pidfd) const;
  /// Becomes readable when a process has ended.
  int fd() const { return epoll_; }
  /// Who has ended; repeated until forgotten. Does not wait.
  std::vector<void*> ended() const;

 private:
  OwnedFd epoll_;
};

}  // namespace q7x2
