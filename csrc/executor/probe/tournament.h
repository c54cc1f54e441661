// Tournament: who meets whom when the hosts of a group are measured in pairs, and the ranks of one.
#pragma once

#include <utility>
#include <vector>

#include "fabric/fabric.h"

namespace q7x2 {

/// Rounds in which hosts meet in pairs; every two once if there are at most `all`.
std::vector<std::vector<std::pair<int, int>>> tournament(int hosts, int all);
/// Those of a probe, the same on all ranks.
inline std::vector<std::vector<std::pair<int, int>>> probe_rounds(int hosts) {
  constexpr int kAll = 16;
  return tournament(hosts, kAll);
}

/// Whether two ranks of a host are bound to different NUMA nodes. `bindings`: by rank.
bool crosses(const std::vector<Fabric::Binding>& bindings, int a, int b);
/// Which of its host's `ranks` the first one, the leader, pings: the next and the last, near and
/// far in most placements, and one in the leader's NUMA node and one in another.
std::vector<int> ping_partners(const std::vector<int>& ranks,
                               const std::vector<Fabric::Binding>& bindings);

}  // namespace q7x2
