#include "executor/probe/tournament.h"

#include <algorithm>

namespace q7x2 {

std::vector<std::vector<std::pair<int, int>>> tournament(int hosts, int all) {
  std::vector<std::vector<std::pair<int, int>>> rounds;
  if (hosts > all) {
    for (int distance = 1; distance < hosts; distance *= 2) {
      auto& round = rounds.emplace_back();
      for (int host = 0; host < hosts; ++host) {
        if (const int other = host ^ distance; host < other && other < hosts) {
          round.emplace_back(host, other);
        }
      }
    }
    return rounds;
  }
  // The circle method: one stays, the others move on by one seat a round. An odd number gets an
  // empty seat, and whoever sits opposite has a rest.
  const int seats = hosts + hosts % 2;
  for (int step = 0; step + 1 < seats; ++step) {
    auto& round = rounds.emplace_back();
    const auto at = [&](int seat) { return seat == 0 ? 0 : 1 + (seat - 1 + step) % (seats - 1); };
    for (int seat = 0; seat < seats / 2; ++seat) {
      const auto [a, b] = std::minmax({at(seat), at(seats - 1 - seat)});
      if (b < hosts) round.emplace_back(a, b);
    }
  }
  return rounds;
}

}  // namespace q7x2
