#include "base/ip_address.h"

#include <arpa/inet.h>
#include <netdb.h>

#include <algorithm>
#include <cstring>
#include <memory>

namespace q7x2 {
namespace {

constexpr size_t kMappedPrefix = 12;  // bytes of ::ffff:0:0

const sockaddr_in& as_v4(const sockaddr* address) {
  return *reinterpret_cast<const sockaddr_in*>(address);
}
const sockaddr_in6& as_v6(const sockaddr* address) {
  return *reinterpret_cast<const sockaddr_in6*>(address);
}

using Name = int (*)(int, sockaddr*, socklen_t*);

std::optional<IpEndpoint> endpoint(int socket, Name name) {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  auto* const generic = reinterpret_cast<sockaddr*>(&storage);
  if (name(socket, generic, &size) != 0) return std::nullopt;
  const std::optional<IpAddress> address = IpAddress::of(generic);
  if (!address) return std::nullopt;
  const in_port_t port =
      generic->sa_family == AF_INET ? as_v4(generic).sin_port : as_v6(generic).sin6_port;
  return IpEndpoint{*address, ntohs(port)};
}

}  // namespace

std::optional<IpAddress> IpAddress::of(const sockaddr* address) {
  if (address->sa_family == AF_INET) return v4(ntohl(as_v4(address).sin_addr.s_addr));
  if (address->sa_family != AF_INET6) return std::nullopt;
  Bytes bytes;
  std::memcpy(bytes.data(), &as_v6(address).sin6_addr, bytes.size());
  return IpAddress(bytes);
}

bool IpAddress::is_v4() const {
  constexpr Bytes kMapped = v4(0).bytes_;
  return std::equal(kMapped.begin(), kMapped.begin() + kMappedPrefix, bytes_.begin());
}

uint32_t IpAddress::v4() const {
  uint32_t word = 0;
  std::memcpy(&word, bytes_.data() + kMappedPrefix, sizeof(word));
  return ntohl(word);
}

bool IpAddress::is_loopback() const {
  if (is_v4()) return v4() >> 24 == IN_LOOPBACKNET;
  Bytes one{};
  one.back() = 1;
  return bytes_ == one;
}

std::string IpAddress::wire_bytes() const {
  return {bytes_.begin() + (is_v4() ? kMappedPrefix : 0), bytes_.end()};
}

std::string IpAddress::text() const {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const std::string wire = wire_bytes();
  ::inet_ntop(family(), wire.data(), text.data(), text.size());
  return text.data();
}

std::vector<IpAddress> resolve(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (::getaddrinfo(host.c_str(), nullptr, &hints, &list) != 0) return {};
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, ::freeaddrinfo);
  std::vector<IpAddress> found;
  for (const addrinfo* each = list; each != nullptr; each = each->ai_next) {
    if (const auto address = IpAddress::of(each->ai_addr)) found.push_back(*address);
  }
  std::ranges::stable_partition(found, &IpAddress::is_v4);
  return found;
}

std::optional<IpEndpoint> IpEndpoint::peer_of(int socket) {
  return endpoint(socket, ::getpeername);
}

std::optional<IpEndpoint> IpEndpoint::own_of(int socket) {
  return endpoint(socket, ::getsockname);
}

SocketAddress::SocketAddress(const IpEndpoint& endpoint) {
  const std::string wire = endpoint.address.wire_bytes();
  if (endpoint.address.is_v4()) {
    auto& v4 = reinterpret_cast<sockaddr_in&>(storage_);
    v4.sin_family = AF_INET;
    v4.sin_port = htons(endpoint.port);
    std::memcpy(&v4.sin_addr, wire.data(), wire.size());
    size_ = sizeof(v4);
  } else {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(storage_);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(endpoint.port);
    std::memcpy(&v6.sin6_addr, wire.data(), wire.size());
    size_ = sizeof(v6);
  }
}

}  // namespace q7x2
