#include "transport/nics.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <thread>

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

/// Whether an interface beside `nics` could be a way to other hosts, by IPv6 alone.
bool has_others(const std::vector<Nic>& nics) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return true;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET6 ||
        (each->ifa_flags & IFF_LOOPBACK) != 0 || (each->ifa_flags & IFF_RUNNING) == 0 ||
        is_bridge(each->ifa_name) ||
        IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(each->ifa_addr)->sin6_addr)) {
      continue;
    }
    if (std::none_of(nics.begin(), nics.end(),
                     [&](const Nic& nic) { return nic.name == each->ifa_name; })) {
      return true;
    }
  }
  return false;
}

bool has_rdma() {
  std::error_code ignored;
  return !std::filesystem::is_empty("/sys/class/infiniband", ignored) && !ignored;
}

/// The address this host would send from to reach `target`; no packet is sent.
std::optional<uint32_t> source_address(const sockaddr_in& target) {
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return std::nullopt;
  sockaddr_in own{};
  socklen_t length = sizeof(own);
  const bool found =
      ::connect(fd, reinterpret_cast<const sockaddr*>(&target), sizeof(target)) == 0 &&
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) == 0;
  ::close(fd);
  return found ? std::optional(ntohl(own.sin_addr.s_addr)) : std::nullopt;
}

std::optional<uint32_t> address_towards_master() {
  sockaddr_in target{};
  target.sin_family = AF_INET;
  target.sin_port = htons(9);
  // Any address outside: the default route is asked for, nobody is called.
  target.sin_addr.s_addr = htonl(0x08080808);
  if (const char* master = std::getenv("MASTER_ADDR"); master != nullptr && *master != '\0') {
    addrinfo hints{};
    hints.ai_family = AF_INET;
    hints.ai_socktype = SOCK_DGRAM;
    addrinfo* found = nullptr;
    if (::getaddrinfo(master, nullptr, &hints, &found) != 0) return std::nullopt;
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
    std::memcpy(&target.sin_addr, &reinterpret_cast<sockaddr_in*>(found->ai_addr)->sin_addr,
                sizeof(target.sin_addr));
  }
  return source_address(target);
}

/// Without any interface the way to MASTER_ADDR may be out for a moment. UCX would leave it out for
/// good, so it is waited for as long as a host may be silent.
std::vector<Nic> nics_of_job() {
  std::vector<Nic> nics = usable_nics();
  if (!nics.empty() || std::getenv("MASTER_ADDR") == nullptr) return nics;
  const std::optional<uint32_t> own = address_towards_master();
  if (!own || *own >> 24 == IN_LOOPBACKNET) return nics;
  const auto give_up = std::chrono::steady_clock::now() + silence_limit();
  while (nics.empty() && std::chrono::steady_clock::now() < give_up) {
    std::this_thread::sleep_for(kPause);
    nics = usable_nics();
  }
  return nics;
}

/// The addresses of this host beside `address` and those of `beside`: IPv4, and IPv6 of interfaces
/// that have no others.
HostAddresses other_sources(uint32_t address, const std::vector<Nic>& beside) {
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
    if (!is_loopback && own != address && !std::ranges::count(beside, own, &Nic::address)) {
      sources.add(own);
    }
  }
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET6 ||
        (each->ifa_flags & IFF_LOOPBACK) != 0 || with_ipv4.contains(each->ifa_name)) {
      continue;
    }
    HostAddresses::Ipv6 own;
    std::memcpy(own.data(), &reinterpret_cast<const sockaddr_in6*>(each->ifa_addr)->sin6_addr,
                own.size());
    sources.add(own);
  }
  return sources;
}

/// Where heartbeats of other hosts come to. `own`: the address towards MASTER_ADDR.
uint32_t address_for_others(const std::vector<Nic>& nics, std::optional<uint32_t> own) {
  const char* const chosen = std::getenv("UCX_NET_DEVICES");
  const std::string devices = chosen == nullptr ? "" : "," + std::string(chosen) + ",";
  const auto find = [&](const auto& is_it) {
    return std::find_if(nics.begin(), nics.end(), is_it);
  };
  auto found =
      find([&](const Nic& nic) { return devices.find("," + nic.name + ",") != devices.npos; });
  if (found == nics.end()) {
    // MASTER_ADDR may lead to the loopback on the host that has it.
    found = find([&](const Nic& nic) { return own && nic.address == *own; });
  }
  if (found != nics.end()) return found->address;
  // An interface may just be coming up.
  return !nics.empty() ? nics.front().address : own.value_or(INADDR_LOOPBACK);
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
        each->ifa_netmask == nullptr || (each->ifa_flags & IFF_LOOPBACK) != 0 ||
        (each->ifa_flags & IFF_RUNNING) == 0 || is_bridge(each->ifa_name)) {
      continue;
    }
    nics.push_back({each->ifa_name, number_of(each->ifa_addr),
                    static_cast<uint8_t>(std::popcount(number_of(each->ifa_netmask)))});
  }
  return nics;
}

NicRoles nic_roles() {
  const std::vector<Nic> nics = nics_of_job();
  const std::optional<uint32_t> own = nics.size() != 1 ? address_towards_master() : std::nullopt;
  const uint32_t address = address_for_others(nics, own);
  if (nics.empty() || std::getenv("UCX_NET_DEVICES") != nullptr || has_rdma()) {
    return {.shared = {},
            .beside = {},
            .address = address,
            .sources = other_sources(address, /*beside=*/{})};
  }
  const auto main = std::find_if(nics.begin(), nics.end(),
                                 [&](const Nic& nic) { return own && nic.address == *own; });
  NicRoles roles;
  roles.address = address;
  if (main == nics.end() && has_others(nics)) {
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
