// IpAddress: an IPv4 or IPv6 address; IpEndpoint: one end of a TCP connection.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace q7x2 {

class IpAddress {
 public:
  /// In network order. An IPv4 address is stored as ::ffff:a.b.c.d (RFC 4291, 2.5.5.2).
  using Bytes = std::array<uint8_t, 16>;

  /// The unspecified address, "::".
  constexpr IpAddress() = default;
  constexpr explicit IpAddress(const Bytes& bytes) : bytes_(bytes) {}
  /// IPv4, in host byte order.
  static constexpr IpAddress v4(uint32_t address) {
    return IpAddress(Bytes{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff,
                           static_cast<uint8_t>(address >> 24), static_cast<uint8_t>(address >> 16),
                           static_cast<uint8_t>(address >> 8), static_cast<uint8_t>(address)});
  }
  /// The address in a socket address; nothing if it is of another family.
  static std::optional<IpAddress> of(const sockaddr* address);

  const Bytes& bytes() const { return bytes_; }
  bool is_v4() const;
  /// In host byte order; requires an IPv4 address.
  uint32_t v4() const;
  bool is_loopback() const;
  /// An IPv6 address that is valid on one link only, fe80::/10.
  bool is_link_local() const { return bytes_[0] == 0xfe && (bytes_[1] & 0xc0) == 0x80; }
  /// AF_INET or AF_INET6
  int family() const { return is_v4() ? AF_INET : AF_INET6; }
  /// In the wire format: 4 bytes or 16.
  std::string wire_bytes() const;
  /// "10.0.0.7", "fd00::7"
  std::string text() const;

  auto operator<=>(const IpAddress&) const = default;

 private:
  Bytes bytes_{};
};

/// The addresses of a host, given by name or as text: IPv4 first. Empty if the name is unknown.
std::vector<IpAddress> resolve(const std::string& host);

inline constexpr IpAddress kLoopback = IpAddress::v4(INADDR_LOOPBACK);

/// One end of a TCP connection.
struct IpEndpoint {
  IpAddress address;
  uint16_t port = 0;

  /// The other end of a socket, and its own; nothing if it has none, or does not use IP.
  static std::optional<IpEndpoint> peer_of(int socket);
  static std::optional<IpEndpoint> own_of(int socket);

  /// "10.0.0.7 port 31000"
  std::string text() const { return address.text() + " port " + std::to_string(port); }
  auto operator<=>(const IpEndpoint&) const = default;
};

/// For connect and bind. It has no scope, so link-local addresses of IPv6 do not work.
class SocketAddress {
 public:
  explicit SocketAddress(const IpEndpoint& endpoint);

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t size() const { return size_; }

 private:
  sockaddr_storage storage_{};
  socklen_t size_ = 0;
};

}  // namespace q7x2
