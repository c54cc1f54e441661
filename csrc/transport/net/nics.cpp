#include "transport/net/nics.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <thread>

#include "base/owned_fd.h"
#include "transport/net/silence_limit.h"

namespace q7x2 {
namespace {

constexpr std::chrono::milliseconds kPause{10};

uint32_t network_mask(uint8_t prefix) {
  return prefix == 0 ? 0 : ~uint32_t{0} << (32 - prefix);
}

bool is_bridge(const std::string& name) {
  std::error_code ignored;
  return std::filesystem::exists("/sys/class/net/" + name + "/bridge", ignored);
}

/// One address of an interface of this host.
struct InterfaceAddress {
  std::string name;
  unsigned flags;  // a combination of IFF_*
  IpAddress address;
  std::optional<uint8_t> prefix;  // length of its network's prefix in bits, only for IPv4

  bool is_loopback() const { return (flags & IFF_LOOPBACK) != 0; }
  /// Whether it is up, and neither a loopback nor a bridge.
  bool is_usable() const {
    return !is_loopback() && (flags & IFF_RUNNING) != 0 && !is_bridge(name);
  }
};

/// Empty if the kernel does not tell.
std::vector<InterfaceAddress> addresses_of_host() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  std::vector<InterfaceAddress> all;
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    const auto address = each->ifa_addr == nullptr ? std::nullopt : IpAddress::of(each->ifa_addr);
    if (!address) continue;
    const auto mask =
        each->ifa_netmask == nullptr ? std::nullopt : IpAddress::of(each->ifa_netmask);
    const bool has_prefix = address->is_v4() && mask && mask->is_v4();
    all.push_back({each->ifa_name, each->ifa_flags, *address,
                   has_prefix ? std::optional(static_cast<uint8_t>(std::popcount(mask->v4())))
                              : std::nullopt});
  }
  return all;
}

bool has_v4(const std::vector<InterfaceAddress>& all, const std::string& name) {
  return std::ranges::any_of(
      all, [&](const auto& each) { return each.name == name && each.address.is_v4(); });
}

/// The interfaces that are up.
struct HostNics {
  std::vector<Nic> v4;
  std::vector<NicV6> v6;  // interfaces without IPv4

  bool empty() const { return v4.empty() && v6.empty(); }
};

HostNics nics_of_host() {
  const std::vector<InterfaceAddress> all = addresses_of_host();
  HostNics nics;
  for (const InterfaceAddress& each : all) {
    if (!each.is_usable()) continue;
    if (each.prefix) {
      nics.v4.push_back({each.name, each.address.v4(), *each.prefix});
    } else if (!each.address.is_v4() && !each.address.is_link_local() && !has_v4(all, each.name)) {
      nics.v6.push_back({each.name, each.address});
    }
  }
  return nics;
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

/// The addresses of MASTER_ADDR. If it is unset, any addresses outside this host: they only select
/// the default route, and no packet is sent to them.
std::vector<IpAddress> masters() {
  const char* const master = std::getenv("MASTER_ADDR");
  if (master == nullptr || *master == '\0') {
    constexpr IpAddress::Bytes kOutside{0x20, 0x01, 0x48, 0x60, 0x48, 0x60, 0,    0,
                                        0,    0,    0,    0,    0,    0,    0x88, 0x88};
    return {IpAddress::v4(0x08080808), IpAddress(kOutside)};
  }
  return resolve(master);
}

/// The address from which this host sends to the first of `masters` that it has a route to.
std::optional<IpAddress> address_towards_master() {
  for (const IpAddress& master : masters()) {
    if (const auto own = source_address(master)) return own;
  }
  return std::nullopt;
}

/// If no interface is up, the network may only be down for a moment. UCX would ignore an interface
/// that is down for good. So this waits as long as a host may be silent.
HostNics nics_of_job() {
  HostNics nics = nics_of_host();
  if (!nics.empty() || std::getenv("MASTER_ADDR") == nullptr) return nics;
  const std::optional<IpAddress> own = address_towards_master();
  if (!own || own->is_loopback()) return nics;
  const auto give_up = std::chrono::steady_clock::now() + silence_limit();
  while (nics.empty() && std::chrono::steady_clock::now() < give_up) {
    std::this_thread::sleep_for(kPause);
    nics = nics_of_host();
  }
  return nics;
}

/// The addresses of this host other than `address` and those of `rails`: IPv4 addresses, and IPv6
/// addresses of interfaces without IPv4.
HostAddresses other_sources(const IpAddress& address, const std::vector<Nic>& rails) {
  const std::vector<InterfaceAddress> all = addresses_of_host();
  HostAddresses sources;
  for (const InterfaceAddress& each : all) {
    if (each.is_loopback()) continue;
    const bool is_known =
        each.address == address || std::ranges::any_of(rails, [&](const Nic& nic) {
          return IpAddress::v4(nic.address) == each.address;
        });
    if (each.address.is_v4() ? !is_known : !has_v4(all, each.name)) sources.add(each.address);
  }
  return sources;
}

/// The address for heartbeats of other hosts. `own`: the address towards MASTER_ADDR.
IpAddress address_for_others(const HostNics& nics, const std::optional<IpAddress>& own) {
  std::vector<std::pair<std::string, IpAddress>> all;
  for (const Nic& nic : nics.v4) all.emplace_back(nic.name, IpAddress::v4(nic.address));
  for (const NicV6& nic : nics.v6) all.emplace_back(nic.name, nic.address);
  const char* const chosen = std::getenv("UCX_NET_DEVICES");
  const std::string devices = chosen == nullptr ? "" : "," + std::string(chosen) + ",";
  auto found = std::ranges::find_if(
      all, [&](const auto& nic) { return devices.find("," + nic.first + ",") != devices.npos; });
  if (found == all.end()) {
    // On the host that has MASTER_ADDR, the address towards it may be that of the loopback.
    found = std::ranges::find_if(all, [&](const auto& nic) { return own && nic.second == *own; });
  }
  if (found != all.end()) return found->second;
  // An interface may become usable at any moment.
  return !all.empty() ? all.front().second : own.value_or(kLoopback);
}

}  // namespace

bool Nic::same_network(const Nic& other) const {
  return prefix == other.prefix && ((address ^ other.address) & network_mask(prefix)) == 0;
}

std::vector<Nic> usable_nics() {
  return nics_of_host().v4;
}

std::vector<NicV6> usable_v6_nics() {
  return nics_of_host().v6;
}

NicRoles nic_roles() {
  const HostNics all = nics_of_job();
  const std::vector<Nic>& nics = all.v4;
  const bool is_plain = nics.size() == 1 && all.v6.empty();
  const std::optional<IpAddress> own = is_plain ? std::nullopt : address_towards_master();
  const IpAddress address = address_for_others(all, own);
  if (nics.empty() || std::getenv("UCX_NET_DEVICES") != nullptr || has_rdma()) {
    return {.shared = {},
            .rails = {},
            .address = address,
            .sources = other_sources(address, /*rails=*/{})};
  }
  const auto main = std::ranges::find_if(
      nics, [&](const Nic& nic) { return own && IpAddress::v4(nic.address) == *own; });
  NicRoles roles;
  roles.address = address;
  if (main == nics.end() && !all.v6.empty()) {
    roles.sources = other_sources(address, roles.rails);
    return roles;
  }
  for (const Nic& nic : nics) {
    if (main == nics.end() || nic.name == main->name || nic.same_network(*main)) {
      if (!std::count(roles.shared.begin(), roles.shared.end(), nic.name)) {
        roles.shared.push_back(nic.name);
      }
    } else {
      roles.rails.push_back(nic);
    }
  }
  roles.sources = other_sources(address, roles.rails);
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
