// Tournament: who meets whom when all hosts of a group are measured in pairs.
#pragma once

#include <utility>
#include <vector>

namespace q7x2 {

/// Rounds in which hosts meet in pairs; every two once if there are at most `all`.
std::vector<std::vector<std::pair<int, int>>> tournament(int hosts, int all);

}  // namespace q7x2
