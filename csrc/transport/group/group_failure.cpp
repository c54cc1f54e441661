#include "transport/group/group_failure.h"

#include <algorithm>

namespace q7x2 {
namespace {

constexpr int kSmall = 16;

}  // namespace

std::vector<int> neighbours(int rank, int world_size) {
  std::vector<int> ranks;
  if (world_size <= kSmall) {
    for (int r = 0; r < world_size; ++r) {
      if (r != rank) ranks.push_back(r);
    }
    return ranks;
  }
  for (int distance = 1; distance < world_size; distance *= 2) {
    ranks.push_back((rank + distance) % world_size);
    ranks.push_back((rank - distance + world_size) % world_size);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

}  // namespace q7x2
