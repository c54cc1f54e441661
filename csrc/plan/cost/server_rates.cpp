#include "plan/cost/server_rates.h"

#include <algorithm>

#include "fabric/fabric.h"
#include "plan/cost/network.h"

namespace q7x2 {

std::vector<RatedServer> servers_by_rate(const Fabric& fabric) {
  const Fabric all = fabric.with_servers();
  std::vector<int> on_host(all.hosts.size());
  const auto host_of = [&](int member) {
    return static_cast<size_t>(all.host_of[static_cast<size_t>(member)]);
  };
  for (int member = fabric.world_size(); member < all.world_size(); ++member) {
    ++on_host[host_of(member)];
  }
  std::vector<RatedServer> servers;
  for (int member = fabric.world_size(); member < all.world_size(); ++member) {
    const size_t host = host_of(member);
    servers.push_back({member, rate_of_host(all, static_cast<int>(host)) / on_host[host]});
  }
  std::ranges::stable_sort(servers, std::ranges::greater{}, &RatedServer::rate);
  return servers;
}

}  // namespace q7x2
