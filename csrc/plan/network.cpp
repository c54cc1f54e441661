#include "plan/network.h"

#include <algorithm>
#include <cmath>

namespace q7x2 {

Fabric fabric_or_uniform(const PlanRequest& request) {
  if (request.fabric != nullptr) return *request.fabric;
  return Fabric::uniform(request.world_size, 1, 1);
}

std::vector<double> known_rates(const Routes& routes) {
  std::vector<double> rates;
  double fastest = 0;
  for (const Routes::Resource& resource : routes.resources()) {
    rates.push_back(resource.rate);
    if (std::isfinite(resource.rate)) fastest = std::max(fastest, resource.rate);
  }
  for (double& rate : rates) {
    if (!std::isfinite(rate)) rate = fastest > 0 ? fastest : 1;
  }
  return rates;
}

Tree tree_of_ranks(const Tree& hosts, const std::vector<int>& speaker, const Fabric& fabric) {
  Tree tree;
  for (int rank = 0; rank < fabric.world_size(); ++rank) {
    const auto host = static_cast<size_t>(fabric.host_of[static_cast<size_t>(rank)]);
    if (rank != speaker[host]) {
      tree.push_back(speaker[host]);
    } else {
      tree.push_back(hosts[host] < 0 ? -1 : speaker[static_cast<size_t>(hosts[host])]);
    }
  }
  return tree;
}

std::vector<double> network_key(const PlanRequest& request) {
  std::vector<double> key{static_cast<double>(request.collective),
                          static_cast<double>(request.world_size),
                          static_cast<double>(request.root)};
  if (request.fabric == nullptr) return key;
  const Fabric& fabric = *request.fabric;
  key.push_back(fabric.copy_rate);
  key.insert(key.end(), fabric.host_of.begin(), fabric.host_of.end());
  for (const Fabric::Host& host : fabric.hosts) {
    key.insert(key.end(), {static_cast<double>(host.cores), static_cast<double>(host.rack),
                           host.egress, host.ingress});
  }
  for (const Fabric::Rack& rack : fabric.racks) key.insert(key.end(), {rack.up, rack.down});
  for (const Fabric::Link& link : fabric.links) {
    key.insert(key.end(), {static_cast<double>(link.a), static_cast<double>(link.b), link.rate});
  }
  return key;
}

}  // namespace q7x2
