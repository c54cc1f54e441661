#include "executor/probe/placement.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace q7x2 {

std::vector<int> Placement::order() const {
  std::vector<int> ranks(host_of.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  std::ranges::stable_sort(ranks, {},
                           [this](int rank) { return host_of[static_cast<size_t>(rank)]; });
  return ranks;
}

std::vector<int> Placement::leaders() const {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < host_of.size(); ++rank) {
    if (static_cast<size_t>(host_of[rank]) == ranks.size()) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

namespace {

/// A Fabric has the private links of the time of its measurement. So hosts with other private
/// networks count as other hosts.
std::string key_of(const PeerInfo& peer_info) {
  std::set<std::string> networks;
  for (const Nic& nic : peer_info.rails) {
    const uint32_t mask = nic.prefix == 0 ? 0 : ~uint32_t{0} << (32 - nic.prefix);
    networks.insert("/net:" + IpAddress::v4(nic.address & mask).text() + "/" +
                    std::to_string(nic.prefix));
  }
  std::string key = peer_info.host_key;
  for (const std::string& network : networks) key += network;
  return key;
}

}  // namespace

Placement placement_of(const Group& group) {
  return placement_of(group.membership().peer_infos());
}

Placement placement_of(const std::vector<PeerInfo>& peer_infos) {
  Placement placement;
  std::map<std::string, int> host_of_key;
  std::set<std::string> names;
  for (const PeerInfo& peer_info : peer_infos) {
    const auto [it, fresh] =
        host_of_key.try_emplace(peer_info.host_key, static_cast<int>(placement.names.size()));
    placement.host_of.push_back(it->second);
    if (!fresh) continue;
    std::string name = peer_info.hostname;
    for (int i = 2; !names.insert(name).second; ++i)
      name = peer_info.hostname + "/" + std::to_string(i);
    placement.names.push_back(name);
    placement.keys.push_back(key_of(peer_info));
  }
  return placement;
}

}  // namespace q7x2
