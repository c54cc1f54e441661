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

bool crosses(const std::vector<Fabric::Binding>& bindings, int a, int b) {
  const int node_a = bindings[static_cast<size_t>(a)].numa_node;
  const int node_b = bindings[static_cast<size_t>(b)].numa_node;
  return node_a >= 0 && node_b >= 0 && node_a != node_b;
}

std::vector<int> ping_partners(const std::vector<int>& ranks,
                               const std::vector<Fabric::Binding>& bindings) {
  std::vector<int> partners;
  const auto add = [&partners](int rank) {
    if (std::ranges::find(partners, rank) == partners.end()) partners.push_back(rank);
  };
  if (ranks.size() < 2) return partners;
  add(ranks[1]);
  add(ranks.back());
  for (const bool is_other : {false, true}) {
    const auto found = std::find_if(ranks.begin() + 1, ranks.end(), [&](int rank) {
      return crosses(bindings, ranks[0], rank) == is_other;
    });
    if (found != ranks.end()) add(*found);
  }
  return partners;
}

}  // namespace q7x2
