#include "transport/net/host_addresses.h"

#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "base/error.h"

namespace q7x2 {
namespace {

constexpr uint32_t kPass = 0xffffffff;
constexpr uint32_t kDrop = 0;
// Offsets of the version and of the source address in an IP header.
constexpr auto kNetworkHeader = static_cast<uint32_t>(SKF_NET_OFF);
constexpr uint32_t kVersion = kNetworkHeader;
constexpr uint32_t kSource4 = kNetworkHeader + 12;
constexpr uint32_t kSource6 = kNetworkHeader + 8;
constexpr size_t kWords6 = 4;

sock_filter statement(int code, uint32_t value) {
  return {static_cast<uint16_t>(code), 0, 0, value};
}
/// `skip`: number of statements to skip if the comparison holds, and if it does not.
sock_filter comparison(int how, uint32_t value, std::pair<uint8_t, uint8_t> skip) {
  return {static_cast<uint16_t>(BPF_JMP | how | BPF_K), skip.first, skip.second, value};
}

struct Range {
  uint32_t first;
  uint32_t last;
};

/// The ranges that contain all `addresses`: as many as needed, at most kMostRanges. If there are
/// too many, the ranges with the smallest gaps between them are merged.
std::vector<Range> ranges_of(const std::set<uint32_t>& addresses) {
  std::vector<Range> ranges;
  for (const uint32_t address : addresses) {
    if (!ranges.empty() && address == ranges.back().last + 1) {
      ranges.back().last = address;
    } else {
      ranges.push_back({address, address});
    }
  }
  if (ranges.size() <= HostAddresses::kMostRanges) return ranges;
  std::vector<std::pair<uint32_t, size_t>> gaps;  // the gap before a range, and its index
  for (size_t i = 1; i < ranges.size(); ++i) {
    gaps.emplace_back(ranges[i].first - ranges[i - 1].last, i);
  }
  std::sort(gaps.begin(), gaps.end());
  std::set<size_t> closed;
  for (size_t i = 0; i < ranges.size() - HostAddresses::kMostRanges; ++i) {
    closed.insert(gaps[i].second);
  }
  std::vector<Range> fewer;
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (closed.contains(i)) {
      fewer.back().last = ranges[i].last;
    } else {
      fewer.push_back(ranges[i]);
    }
  }
  return fewer;
}

void pass_ipv4(const std::set<uint32_t>& addresses, std::vector<sock_filter>& program) {
  program.push_back(statement(BPF_LD | BPF_W | BPF_ABS, kSource4));
  for (const Range& range : ranges_of(addresses)) {
    if (range.first == range.last) {
      program.push_back(comparison(BPF_JEQ, range.first, {0, 1}));
    } else {
      program.push_back(comparison(BPF_JGE, range.first, {0, 2}));
      program.push_back(comparison(BPF_JGT, range.last, {1, 0}));
    }
    program.push_back(statement(BPF_RET | BPF_K, kPass));
  }
  program.push_back(statement(BPF_RET | BPF_K, kDrop));
}

using Prefix = std::vector<uint32_t>;  // words of an IPv6 address, in host byte order

/// At most kMostPrefixes prefixes, as long as possible, but at least one word long.
std::set<Prefix> prefixes_of(const std::set<IpAddress>& addresses) {
  for (size_t words = kWords6;; words /= 2) {
    std::set<Prefix> prefixes;
    for (const IpAddress& address : addresses) {
      Prefix prefix(words);
      for (size_t i = 0; i < words; ++i) {
        uint32_t word = 0;
        std::memcpy(&word, address.bytes().data() + i * sizeof(word), sizeof(word));
        prefix[i] = ntohl(word);
      }
      prefixes.insert(std::move(prefix));
    }
    if (prefixes.size() <= HostAddresses::kMostPrefixes || words == 1) return prefixes;
  }
}

void pass_ipv6(const std::set<IpAddress>& addresses, std::vector<sock_filter>& program) {
  for (const Prefix& prefix : prefixes_of(addresses)) {
    for (size_t i = 0; i < prefix.size(); ++i) {
      // The comparisons of the other words, and the statement that passes the packet.
      const auto rest = static_cast<uint8_t>(2 * (prefix.size() - i) - 1);
      const auto offset = static_cast<uint32_t>(i * sizeof(uint32_t));
      program.push_back(statement(BPF_LD | BPF_W | BPF_ABS, kSource6 + offset));
      program.push_back(comparison(BPF_JEQ, prefix[i], {0, rest}));
    }
    program.push_back(statement(BPF_RET | BPF_K, kPass));
  }
  program.push_back(statement(BPF_RET | BPF_K, kDrop));
}

}  // namespace

void HostAddresses::add(const HostAddresses& others) {
  ipv4_.insert(others.ipv4_.begin(), others.ipv4_.end());
  ipv6_.insert(others.ipv6_.begin(), others.ipv6_.end());
}

bool HostAddresses::contains(const HostAddresses& others) const {
  return std::ranges::includes(ipv4_, others.ipv4_) && std::ranges::includes(ipv6_, others.ipv6_);
}

void HostAddresses::add(const IpAddress& address) {
  if (address.is_v4()) {
    ipv4_.insert(address.v4());
  } else {
    ipv6_.insert(address);
  }
}

bool HostAddresses::contains(const IpAddress& address) const {
  return address.is_v4() ? ipv4_.contains(address.v4()) : ipv6_.contains(address);
}

std::vector<sock_filter> HostAddresses::filter() const {
  std::vector<sock_filter> ipv4;
  pass_ipv4(ipv4_, ipv4);
  std::vector<sock_filter> program{statement(BPF_LD | BPF_B | BPF_ABS, kVersion),
                                   statement(BPF_ALU | BPF_RSH | BPF_K, 4),
                                   comparison(BPF_JEQ, 4, {1, 0}),
                                   // A long jump: a comparison skips at most 255.
                                   statement(BPF_JMP | BPF_JA, static_cast<uint32_t>(ipv4.size()))};
  program.insert(program.end(), ipv4.begin(), ipv4.end());
  pass_ipv6(ipv6_, program);
  return program;
}

// The number of IPv4 addresses, 4 bytes per IPv4 address, and 16 bytes per IPv6 address.
std::string HostAddresses::encode() const {
  std::string bytes;
  const auto put = [&](uint32_t word) {
    bytes.append(reinterpret_cast<const char*>(&word), sizeof(word));
  };
  put(static_cast<uint32_t>(ipv4_.size()));
  std::ranges::for_each(ipv4_, put);
  for (const IpAddress& address : ipv6_) {
    const IpAddress::Bytes& own = address.bytes();
    bytes.append(own.begin(), own.end());
  }
  return bytes;
}

HostAddresses HostAddresses::decode(std::string_view bytes) {
  const auto take = [&](void* to, size_t size) {
    if (bytes.size() < size) {
      throw Error(ErrorCode::kMismatch, "a rank's list of addresses is cut short");
    }
    std::memcpy(to, bytes.data(), size);
    bytes.remove_prefix(size);
  };
  HostAddresses addresses;
  uint32_t count = 0;
  take(&count, sizeof(count));
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t address = 0;
    take(&address, sizeof(address));
    addresses.add(IpAddress::v4(address));
  }
  while (!bytes.empty()) {
    IpAddress::Bytes address;
    take(address.data(), address.size());
    addresses.add(IpAddress(address));
  }
  return addresses;
}

void attach_filter(int socket, std::vector<sock_filter> filter) {
  const sock_fprog program{static_cast<uint16_t>(filter.size()), filter.data()};
  if (::setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) != 0) {
    throw Error(ErrorCode::kTransport, std::string("the kernel takes no filter for a port, so "
                                                   "that anybody could connect to it: ") +
                                           std::strerror(errno));
  }
}

void detach_filter(int socket) {
  const int unused = 0;
  ::setsockopt(socket, SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof(unused));
}

}  // namespace q7x2
