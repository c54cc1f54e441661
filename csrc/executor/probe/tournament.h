// Tournament: who meets whom when all hosts of a group are measured in pairs.
#pragma once

#include <utility>
#include <vector>

namespace q7x2 {

/// Rounds in which hosts meet in pairs; every two once if there are at most `all`.
std::vector<std::vector<std::pair<int, int>>> tournament(int hosts, int all);
/// Those of a probe, the same on all ranks.
inline std::vector<std::vector<std::pair<int, int>>> probe_rounds(int hosts) {
  constexpr int kAll = 16;
  return tournament(hosts, kAll);
}

}  // namespace q7x2
