// HostAddresses: the IP addresses from which a process lets connections come, and the socket filter
// that drops packets of all others.
//
// The filter is a program of the kernel's packet filter (classic BPF). Attached to a listening
// socket, it sees the first packet of each connection. The packet of a stranger is dropped, as by a
// firewall, so no connection is made. Accepted connections have a copy of the filter.
//
// The kernel limits the length of programs. If there are too many addresses, the filter also passes
// addresses between two of them, where the gaps are smallest.
#pragma once

#include <linux/filter.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/ip_address.h"

namespace q7x2 {

class HostAddresses {
 public:
  /// Maximum number of ranges of IPv4 addresses, and of prefixes of IPv6 addresses, in a filter.
  static constexpr size_t kMostRanges = 256;
  static constexpr size_t kMostPrefixes = 128;

  void add(const IpAddress& address);
  void add(const HostAddresses& others);

  bool empty() const { return ipv4_.empty() && ipv6_.empty(); }
  bool contains(const HostAddresses& others) const;
  bool contains(const IpAddress& address) const;

  /// Passes packets from these addresses and drops all others. Empty: drops all.
  std::vector<sock_filter> filter() const;

  std::string encode() const;
  /// Throws Error(kMismatch) unless `bytes` was made by `encode`.
  static HostAddresses decode(std::string_view bytes);

 private:
  std::set<uint32_t> ipv4_;  // in host byte order
  std::set<IpAddress> ipv6_;
};

/// From now on the socket accepts only packets that `filter` passes. Throws Error(kTransport).
void attach_filter(int socket, std::vector<sock_filter> filter);
/// From now on the socket accepts all packets.
void detach_filter(int socket);

}  // namespace q7x2
