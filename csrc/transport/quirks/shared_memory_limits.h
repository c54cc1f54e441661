// What shared memory this host can give to UCX, and UCX_TLS without the transports that it cannot.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

namespace q7x2 {

/// Why UCX's transport "posix" cannot be opened: a sentence that says what is there, what is needed
/// and what to do. Nothing if it can. `local_ranks`: the ranks of this host that start now.
std::optional<std::string> posix_obstacle(int local_ranks);

/// The same of the transport "sysv". It allocates what UCX would, and frees it.
std::optional<std::string> sysv_obstacle();

/// Whether this process can have a SysV segment of `bytes`, which takes memory only as it is used.
bool sysv_fits(const std::vector<std::string>& transports, size_t bytes);

/// Whether each of `ranks` processes can have a segment of `bytes` through one of UCX's
/// `transports`. In /dev/shm some room must remain for others, for example DataLoader's workers,
/// which get SIGBUS if it is full.
bool segments_fit(const std::vector<std::string>& transports, size_t bytes, int ranks);

/// Whether the messages that pile up for `local_ranks` ranks may find no room in the shared memory
/// of UCX's `transports`: a /dev/shm with a limit, or SysV segments with low ones.
bool is_scarce(const std::vector<std::string>& transports, int local_ranks);

/// How many ranks of the job run on this host: LOCAL_WORLD_SIZE, which torchrun sets, else 1.
int local_ranks();

/// Whether UCX_TLS=`tls` allows the transport.
bool allows_transport(const std::string& tls, const std::string& transport);

/// UCX_TLS that allows what `tls` allows, apart from `without`. The user's choice is respected:
/// nothing is allowed that `tls` does not. Nothing if no transport would be left that carries
/// messages between processes.
std::optional<std::string> without_transports(const std::string& tls,
                                              const std::set<std::string>& without);

}  // namespace q7x2
