#include "random_fabric.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace q7x2 {

Fabric random_fabric(int ranks, uint64_t seed) {
  // Distributions differ between standard libraries, the engine does not.
  std::mt19937_64 random(seed * 1'000'003 + static_cast<uint64_t>(ranks));
  const auto below = [&](int limit) {
    return static_cast<int>(random() % static_cast<uint64_t>(limit));
  };
  const auto rate = [&] { return 1e6 * below(20); };
  Fabric fabric;
  const int hosts = 1 + below(ranks);
  const int racks = 1 + below(std::min(hosts, 4));
  for (int rack = 0; rack < racks; ++rack) {
    fabric.racks.push_back({"r" + std::to_string(rack), rate(), rate()});
  }
  for (int host = 0; host < hosts; ++host) {
    fabric.hosts.push_back({.name = "h" + std::to_string(host),
                            .key = {},
                            .cores = 1 + below(4),
                            .rack = host < racks ? host : below(racks),
                            .egress = rate(),
                            .ingress = rate()});
  }
  for (int rank = 0; rank < ranks; ++rank) {
    fabric.host_of.push_back(rank < hosts ? rank : below(hosts));
  }
  for (size_t rank = fabric.host_of.size(); rank > 1; --rank) {
    std::swap(fabric.host_of[rank - 1],
              fabric.host_of[static_cast<size_t>(below(static_cast<int>(rank)))]);
  }
  for (int a = 0; a < hosts; ++a) {
    for (int b = a + 1; b < hosts; ++b) {
      if (below(6) == 0) fabric.links.push_back({a, b, rate(), 1e-5});
    }
  }
  // Every other host has two NUMA nodes, to which most ranks are bound; few pairs are slow.
  for (int rank = 0; rank < ranks; ++rank) {
    const bool bound = fabric.host_of[static_cast<size_t>(rank)] % 2 == 0 && below(5) > 0;
    fabric.bindings.push_back({bound ? below(2) : -1, ""});
  }
  for (int from = 0; from < hosts; ++from) {
    const int to = below(hosts);
    if (from != to && below(3) == 0) {
      fabric.pairs.push_back({.from = from, .to = to, .alpha = 1e-6 * below(100), .solo = rate()});
    }
  }
  // Half of the Fabrics have servers, some of them on a host of ranks.
  for (int server = below(2) * below(4); server > 0; --server) {
    const bool shares = below(4) == 0;
    if (shares) fabric.hosts[0].key = "shared";
    fabric.servers.push_back({.name = "s" + std::to_string(server),
                              .key = shares ? "shared" : "",
                              .cores = 1 + below(4),
                              .rack = below(racks),
                              .egress = rate(),
                              .ingress = rate()});
  }
  fabric.validate();
  return fabric;
}

}  // namespace q7x2
