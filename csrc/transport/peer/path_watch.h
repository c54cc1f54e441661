// PathWatch: finds the peers that data does not reach, although their hosts answer (see PathClock).
//
// It polls all TCP sockets of UCX's workers, eight times within the limit. A connection of UCX
// leads to an address. If this end has opened it, it also leads to a port. UCX's address of a
// worker contains both, in network order, so they identify the worker. If the other end has opened
// the connection, its port may belong to any process on that host. Then the connection is not
// counted for peers to which this end has itself opened one.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "transport/net/path_clock.h"
#include "transport/peer/peer.h"

namespace q7x2 {

class PathWatch {
 public:
  using TimePoint = PathClock::TimePoint;
  using Paths = std::vector<Peer::Watched*>;
  struct Blocked {
    Peer::Watched* path;
    std::string reason;  ///< completes "rank 3 failed: ..."
  };

  explicit PathWatch(PathClock::Duration limit) : limit_(limit) {}

  /// When to poll again.
  TimePoint due() const { return next_poll_; }
  /// `workers`: epoll descriptors of UCX's workers. `paths`: the open paths to other hosts.
  /// `answers`: whether that peer's host answers elsewhere.
  std::vector<Blocked> poll(TimePoint now, const std::vector<int>& workers, const Paths& paths,
                            const std::function<bool(const Peer::Watched*)>& answers);

 private:
  /// Polls the connections and returns those that are blocked.
  std::vector<PathSample> sample(TimePoint now, const std::vector<int>& workers,
                                 const std::function<bool(const IpAddress&)>& answers);
  /// The paths that may use a connection.
  Paths users_of(const PathSample& connection, const Paths& paths) const;

  const PathClock::Duration limit_;
  TimePoint next_poll_{};
  std::map<uint64_t, PathClock> clocks_;  // by the socket's inode
  std::vector<PathSample> connections_;   // all connections at the last poll
};

}  // namespace q7x2
