// "host:port" in a variable: an address or a name, with or without a port.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ip_address.h"

namespace q7x2 {

struct HostAndPort {
  std::vector<IpAddress> addresses;  ///< at least one; names are resolved here
  uint16_t port = 0;                 ///< 0: none is given

  /// [Brackets] enclose an IPv6 address before a port. Throws Error(kInvalidArgument); `variable`
  /// and `expected` make the message.
  static HostAndPort parse(const std::string& variable, const std::string& text,
                           const std::string& expected);
};

}  // namespace q7x2
