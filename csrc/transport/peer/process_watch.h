// ProcessWatch: notices at once when a process of this host ends.
//
// A pidfd reports the end, but not if the process starts another program by `exec`, or a forked
// child keeps its files. The second sign is the end of a connection to its LifeLine. It may come a
// moment before the pidfd's event, so it is judged a little later.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/owned_fd.h"
#include "transport/net/private_socket.h"
#include "transport/peer/liveness_watch.h"

namespace q7x2 {

/// Whether a process of this host is stopped, by a signal or a debugger. False if unknown.
bool is_stopped(int pid);

class ProcessWatch final : public LivenessWatch {
 public:
  /// `process`: the number of process `pid`. Events are registered in `epoll`, with a pointer to
  /// the watch as their data. Null if the process has already ended.
  static std::unique_ptr<ProcessWatch> start(int pid, uint64_t process, int epoll);
  ~ProcessWatch() override { stop(); }
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;

  std::optional<Finding> ready(TimePoint now) override;
  std::optional<Finding> tick(TimePoint now) override;
  TimePoint due() const override { return verdict_; }

 private:
  ProcessWatch(int pid, OwnedFd pidfd, PrivateSocket line, int epoll);

  void watch(int fd);
  void end_line();
  void stop();

  const int pid_;
  const int epoll_;
  OwnedFd pidfd_;       // invalid if the kernel offers none
  PrivateSocket line_;  // to its LifeLine; invalid if there is none, or it has ended
  TimePoint verdict_ = TimePoint::max();  // when to judge after the end of the line
};

}  // namespace q7x2
