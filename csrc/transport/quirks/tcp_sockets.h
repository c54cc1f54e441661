// The TCP sockets of a UCX worker, which UCX has no function for. /proc/self/fdinfo lists what its
// epoll descriptors watch: the worker's watches those of the interfaces, an interface's the
// sockets.
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

/// Empty if there is no memory: a connection must be closed all the same.
std::vector<Watched> watched_by(int epoll);
bool is_tcp(int fd);
/// Number of bytes that the sockets of this worker have sent and the peers' kernels have not
/// acknowledged. `worker`: its epoll descriptor. `silent`: hosts that are left out.
size_t unacknowledged_bytes(int worker, const std::set<IpAddress>& silent = {});

/// Those that lead to `host`.
std::vector<int> sockets_to(int worker, const IpAddress& host);

/// Totals of what the sockets of this worker have sent. Empty if the kernel does not count it.
std::vector<ConnectionTotals> connection_totals(int worker);

/// The kernel's statistics of the worker's sockets that are connected or connecting, by inode.
std::vector<std::pair<uint64_t, PathSample>> path_samples(int worker);

}  // namespace q7x2
