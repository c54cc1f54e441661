// PathWatch: finds connections of UCX over which data does not get through (see PathClock).
//
// It looks at all TCP sockets of UCX's workers, eight times within the limit. It only says which
// connections are blocked. The PeerTable knows whose they are.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "transport/net/path_clock.h"

namespace q7x2 {

class PathWatch {
 public:
  using TimePoint = PathClock::TimePoint;

  explicit PathWatch(PathClock::Duration limit) : limit_(limit) {}

  /// When to look again.
  TimePoint due() const { return next_look_; }
  /// `workers`: epoll descriptors of UCX's workers. `answers`: whether the host with this address
  /// answers elsewhere. Returns the connections that are blocked.
  std::vector<PathSample> look(TimePoint now, const std::vector<int>& workers,
                               const std::function<bool(const IpAddress&)>& answers);
  /// All connections, as they were at the last look.
  const std::vector<PathSample>& connections() const { return connections_; }

 private:
  const PathClock::Duration limit_;
  TimePoint next_look_{};
  std::map<uint64_t, PathClock> clocks_;  // by the socket's inode
  std::vector<PathSample> connections_;
};

}  // namespace q7x2
