// RatedResource: a part of the network or of a host with a rate that may change.
#pragma once

#include <compare>
#include <cstdint>

namespace q7x2 {

/// Stands for any host as one end of a resource.
inline constexpr int kAnyHost = -1;

struct RatedResource {
  enum class Kind : uint8_t {
    /// From one host to another over the network that all hosts share. {a, kAnyHost}: everything
    /// that host a sends. {kAnyHost, a}: everything that it receives. {a, a}: its processor.
    kNetwork,
    kLink,   ///< the private link from one host to another
    kCable,  ///< the cable of a rack: {r, kAnyHost} leaves rack r, {kAnyHost, r} enters it
  };

  int from = 0;
  int to = 0;
  Kind kind = Kind::kNetwork;

  auto operator<=>(const RatedResource&) const = default;
};

}  // namespace q7x2
