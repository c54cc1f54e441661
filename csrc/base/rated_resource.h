// RatedResource: something of the network or of a host that has a rate, and whose rate may change.
#pragma once

#include <compare>
#include <cstdint>

namespace q7x2 {

/// The other end of a resource, whatever it is.
inline constexpr int kAnyHost = -1;

struct RatedResource {
  enum class Kind : uint8_t {
    /// From one host to another over the network that all hosts share. {a, kAnyHost}: all that host
    /// a sends. {kAnyHost, a}: all that it receives. {a, a}: its processor.
    kNetwork,
    kLink,   ///< the private link from one host to another
    kCable,  ///< of a rack: {r, kAnyHost} is what leaves rack r, {kAnyHost, r} what enters it
  };

  int from = 0;
  int to = 0;
  Kind kind = Kind::kNetwork;

  auto operator<=>(const RatedResource&) const = default;
};

}  // namespace q7x2
