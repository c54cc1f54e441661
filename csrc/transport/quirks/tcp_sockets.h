// The TCP sockets of a UCX worker, which UCX does not tell. /proc/self/fdinfo says what its epoll
// descriptors watch: the worker's those of the interfaces, an interface's the sockets.
#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "base/ip_address.h"
#include "ledger/link_meter.h"
#include "transport/net/path_clock.h"

namespace q7x2 {

/// What an epoll descriptor watches.
struct Watched {
  int fd;
  epoll_event watch;
};

/// Nothing where there is no memory: a connection must close all the same.
std::vector<Watched> watched_by(int epoll);
bool is_tcp(int fd);
/// Bytes that the sockets of this worker have sent and the peers' kernels do not have yet.
/// `worker`: its epoll descriptor. `silent`: hosts that are left out.
size_t unacknowledged_bytes(int worker, const std::set<IpAddress>& silent = {});

/// What the sockets of this worker have sent. Empty where the kernel does not count it.
std::vector<ConnectionTotals> connection_totals(int worker);

/// What the kernel says of the sockets of this worker, by inode: those that are connected or
/// connecting.
std::vector<std::pair<uint64_t, PathSample>> path_samples(int worker);

}  // namespace q7x2
