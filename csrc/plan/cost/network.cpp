#include "plan/cost/network.h"

#include <algorithm>
#include <cmath>

namespace q7x2 {

Fabric fabric_or_uniform(const ScheduleRequest& request) {
  if (request.fabric != nullptr) return *request.fabric;
  return Fabric::uniform(request.world_size, 1, 1);
}

double rate_of_host(const Fabric& fabric, int host) {
  const Fabric::Host& it = fabric.hosts[static_cast<size_t>(host)];
  double rate = std::min(rate_or_unlimited(it.egress), rate_or_unlimited(it.ingress));
  for (const Fabric::Link& link : fabric.links) {
    if (link.a == host || link.b == host) rate += rate_or_unlimited(link.rate);
  }
  return rate;
}

std::vector<double> known_rates(const Routes& routes) {
  std::vector<double> rates;
  double fastest = 0;
  for (const Routes::Resource& resource : routes.resources()) {
    const bool is_window = resource.kind == Routes::Kind::kWindow;
    rates.push_back(is_window ? rate_or_unlimited(0) : resource.rate);
    if (std::isfinite(rates.back())) fastest = std::max(fastest, resource.rate);
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

}  // namespace q7x2
