// How much shared memory this host offers UCX, and UCX_TLS without transports that need more.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

namespace q7x2 {

/// Why UCX's transport "posix" cannot be opened: a sentence with what is available, what is needed
/// and what to do. Nothing if it can be opened. `local_ranks`: the ranks of this host that start
/// now.
std::optional<std::string> posix_obstacle(int local_ranks);

/// The same for the transport "sysv". Allocates as much as UCX would, and frees it.
std::optional<std::string> sysv_obstacle();

/// Whether this process can have a SysV segment of `bytes` bytes. It takes memory only as it is
/// used.
bool sysv_fits(const std::vector<std::string>& transports, size_t bytes);

/// Whether each of `ranks` processes can have a segment of `bytes` bytes through one of UCX's
/// `transports`. Some room in /dev/shm must remain for others, for example the workers of
/// DataLoader, which get SIGBUS if it is full.
bool segments_fit(const std::vector<std::string>& transports, size_t bytes, int ranks);

/// Whether messages without a receive may fill the shared memory of UCX's `transports` on a host
/// with `local_ranks` ranks: a /dev/shm with a limit, or SysV segments with low limits.
bool is_scarce(const std::vector<std::string>& transports, int local_ranks);

/// How many ranks of the job run on this host: LOCAL_WORLD_SIZE, which torchrun sets; otherwise 1.
int local_ranks();

/// Whether UCX_TLS=`tls` allows the transport.
bool allows_transport(const std::string& tls, const std::string& transport);

/// UCX_TLS that allows what `tls` allows, apart from `without`. The user's choice is respected: it
/// allows nothing that `tls` does not. Returns nothing if no transport would be left that carries
/// messages between processes.
std::optional<std::string> without_transports(const std::string& tls,
                                              const std::set<std::string>& without);

}  // namespace q7x2
