#include "transport/nics.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>
#include <thread>

#include "base/owned_fd.h"
#include "transport/failure_detector.h"

namespace q7x2 {
namespace {

constexpr std::chrono::milliseconds kPause{10};

uint32_t network_mask(uint8_t prefix) {
  return prefix == 0 ? 0 : ~uint32_t{0} << (32 - prefix);
}

uint32_t number_of(const sockaddr* address) {
  return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr);
}

bool is_bridge(const std::string& name) {
  std::error_code ignored;
  return std::filesystem::exists("/sys/class/net/" + name + "/bridge", ignored);
}

/// Up, and neither a loopback nor a bridge.
bool is_usable(const ifaddrs& interface) {
  return (interface.ifa_flags & IFF_LOOPBACK) == 0 && (interface.ifa_flags & IFF_RUNNING) != 0 &&
         !is_bridge(interface.ifa_name);
}

bool has_rdma() {
  std::error_code ignored;
  return !std::filesystem::is_empty("/sys/class/infiniband", ignored) && !ignored;
}

/// The address this host would send from to reach `target`; no packet is sent.
std::optional<IpAddress> source_address(const IpAddress& target) {
  constexpr uint16_t kAnyPort = 9;
  const OwnedFd fd(::socket(target.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const SocketAddress to({target, kAnyPort});
  if (fd < 0 || ::connect(fd, to.get(), to.size()) != 0) return std::nullopt;
  const std::optional<IpEndpoint> own = IpEndpoint::own_of(fd);
  return own ? std::optional(own->address) : std::nullopt;
}

/// Where the job's ranks meet. Without MASTER_ADDR any addresses outside: the default
/// route is asked for, nobody is called.
std::vector<IpAddress> masters() {
  const char* const master = std::getenv("MASTER_ADDR");
  if (master == nullptr || *master == '\0') {
    constexpr IpAddress::Bytes kOutside{0x20, 0x01, 0x48, 0x60, 0x48, 0x60, 0,    0,
                                        0,    0,    0,    0,    0,    0,    0x88, 0x88};
    return {IpAddress::v4(0x08080808), IpAddress(kOutside)};
  }
  return resolve(master);
}

/// From which this host sends to the first of `masters` that it has a route to.
std::optional<IpAddress> address_towards_master() {
  for (const IpAddress& master : masters()) {
    if (const auto own = source_address(master)) return own;
  }
  return std::nullopt;
}

/// Without any interface the way to MASTER_ADDR may be out for a moment. UCX would leave it out for
/// good, so it is waited for as long as a host may be silent.
std::vector<Nic> nics_of_job() {
  std::vector<Nic> nics = usable_nics();
  if (!nics.empty() || !usable_v6_nics().empty() || std::getenv("MASTER_ADDR") == nullptr) {
    return nics;
  }
  const std::optional<IpAddress> own = address_towards_master();
  if (!own || own->is_loopback()) return nics;
  const auto give_up = std::chrono::steady_clock::now() + silence_limit();
  while (nics.empty() && usable_v6_nics().empty() && std::chrono::steady_clock::now() < give_up) {
    std::this_thread::sleep_for(kPause);
    nics = usable_nics();
  }
  return nics;
}

/// The addresses of this host beside `address` and those of `beside`: IPv4, and IPv6 of interfaces
/// that have no others.
HostAddresses other_sources(const IpAddress& address, const std::vector<Nic>& beside) {
  HostAddresses sources;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return sources;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  std::set<std::string> with_ipv4;
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
    with_ipv4.insert(each->ifa_name);
    const uint32_t own = number_of(each->ifa_addr);
    const bool is_loopback = (each->ifa_flags & IFF_LOOPBACK) != 0;
    if (!is_loopback && IpAddress::v4(own) != address &&
        !std::ranges::count(beside, own, &Nic::address)) {
      sources.add(IpAddress::v4(own));
    }
  }
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET6 ||
        (each->ifa_flags & IFF_LOOPBACK) != 0 || with_ipv4.contains(each->ifa_name)) {
      continue;
    }
    sources.add(*IpAddress::of(each->ifa_addr));
  }
  return sources;
}

/// Where heartbeats of other hosts come to. `own`: the address towards MASTER_ADDR.
IpAddress address_for_others(const std::vector<Nic>& nics, const std::optional<IpAddress>& own) {
  std::vector<std::pair<std::string, IpAddress>> all;
  for (const Nic& nic : nics) all.emplace_back(nic.name, IpAddress::v4(nic.address));
  for (const NicV6& nic : usable_v6_nics()) all.emplace_back(nic.name, nic.address);
  const char* const chosen = std::getenv("UCX_NET_DEVICES");
  const std::string devices = chosen == nullptr ? "" : "," + std::string(chosen) + ",";
  auto found = std::ranges::find_if(
      all, [&](const auto& nic) { return devices.find("," + nic.first + ",") != devices.npos; });
  if (found == all.end()) {
    // MASTER_ADDR may lead to the loopback on the host that has it.
    found = std::ranges::find_if(all, [&](const auto& nic) { return own && nic.second == *own; });
  }
  if (found != all.end()) return found->second;
  // An interface may just be coming up.
  return !all.empty() ? all.front().second : own.value_or(kLoopback);
}

}  // namespace

bool Nic::same_network(const Nic& other) const {
  return prefix == other.prefix && ((address ^ other.address) & network_mask(prefix)) == 0;
}

std::vector<Nic> usable_nics() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  std::vector<Nic> nics;
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET ||
        each->ifa_netmask == nullptr || !is_usable(*each)) {
      continue;
    }
    nics.push_back({each->ifa_name, number_of(each->ifa_addr),
                    static_cast<uint8_t>(std::popcount(number_of(each->ifa_netmask)))});
  }
  return nics;
}

std::vector<NicV6> usable_v6_nics() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  std::set<std::string> with_ipv4;
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr != nullptr && each->ifa_addr->sa_family == AF_INET) {
      with_ipv4.insert(each->ifa_name);
    }
  }
  std::vector<NicV6> nics;
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET6 || !is_usable(*each) ||
        with_ipv4.contains(each->ifa_name) ||
        IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(each->ifa_addr)->sin6_addr)) {
      continue;
    }
    nics.push_back({each->ifa_name, *IpAddress::of(each->ifa_addr)});
  }
  return nics;
}

NicRoles nic_roles() {
  const std::vector<Nic> nics = nics_of_job();
  const bool is_plain = nics.size() == 1 && usable_v6_nics().empty();
  const std::optional<IpAddress> own = is_plain ? std::nullopt : address_towards_master();
  const IpAddress address = address_for_others(nics, own);
  if (nics.empty() || std::getenv("UCX_NET_DEVICES") != nullptr || has_rdma()) {
    return {.shared = {},
            .beside = {},
            .address = address,
            .sources = other_sources(address, /*beside=*/{})};
  }
  const auto main = std::ranges::find_if(
      nics, [&](const Nic& nic) { return own && IpAddress::v4(nic.address) == *own; });
  NicRoles roles;
  roles.address = address;
  if (main == nics.end() && !usable_v6_nics().empty()) {
    roles.sources = other_sources(address, roles.beside);
    return roles;
  }
  for (const Nic& nic : nics) {
    if (main == nics.end() || nic.name == main->name || nic.same_network(*main)) {
      if (!std::count(roles.shared.begin(), roles.shared.end(), nic.name)) {
        roles.shared.push_back(nic.name);
      }
    } else {
      roles.beside.push_back(nic);
    }
  }
  roles.sources = other_sources(address, roles.beside);
  return roles;
}

std::optional<std::pair<size_t, size_t>> common_network(const std::vector<Nic>& mine,
                                                        const std::vector<Nic>& theirs) {
  for (size_t i = 0; i < mine.size(); ++i) {
    for (size_t j = 0; j < theirs.size(); ++j) {
      if (mine[i].same_network(theirs[j]) && mine[i].address != theirs[j].address) {
        return std::pair(i, j);
      }
    }
  }
  return std::nullopt;
}

}  // namespace q7x2
