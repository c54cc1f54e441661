// The living catalogue: Fabrics that were measured before, one file for each set of hosts, in
// $XDG_CACHE_HOME/q7x2 or ~/.cache/q7x2. Its files are JSON, made to be read and compared.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "fabric/fabric.h"

namespace q7x2 {

/// The Fabric in `file`. Throws Error(kInvalidArgument), which names the file and what is wrong.
Fabric read_fabric(const std::string& file);
/// Replaces `file` in one step. Throws Error(kTransport) where that is refused.
void write_fabric(const std::string& file, const Fabric& fabric);

/// The file for these hosts (see host_key()) under the UCX_* settings of this process, which change
/// what is measured. Empty without a home directory.
std::string catalogue_file(std::vector<std::string> host_keys);

/// `Q7X2_FABRIC_MAX_AGE`: "90s", "12h", "7d" (the default). Throws Error(kInvalidArgument).
std::chrono::seconds catalogue_max_age();

/// For how long a Fabric counts that was measured on a busy machine (fabric/doubt.h).
inline constexpr std::chrono::minutes kDoubtfulAge{10};
/// Whether a measured Fabric still counts: it is younger than `max_age`, and if it is doubtful,
/// also than kDoubtfulAge.
bool is_young(const Fabric& fabric, std::chrono::seconds max_age);

/// What the catalogue has in `file`, if it is young. An entry that cannot be read is ignored, and
/// will be replaced.
std::optional<Fabric> catalogued(const std::string& file, std::chrono::seconds max_age);

/// Adds the tuned times of `measured`, which has these and no others, to the entry of its hosts;
/// see Fabric::learn. If there is none that is young, `measured` becomes the entry if it comes
/// from a probe. Returns false if there is no such entry to write. Throws as write_fabric does.
bool catalogue_times(const Fabric& measured, std::chrono::seconds max_age);

/// The Fabric of ranks on the hosts `host_of[rank]`, made of those of `known`: the host with the
/// same key, or else one with the same name where `by_name`. None where `known` lacks a host. What
/// its ranks are bound to is not known.
std::optional<Fabric> placed(const Fabric& known, const std::vector<int>& host_of,
                             const std::vector<std::string>& keys,
                             const std::vector<std::string>& names, bool by_name);

}  // namespace q7x2
