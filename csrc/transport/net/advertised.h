// Advertised: where processes of other networks reach this one, as Q7X2_ADVERTISE says.
//
// NAT and port forwarding translate addresses, so the addresses of this host's interfaces mean
// nothing to other networks:
//
//   unset               nothing is translated
//   203.0.113.5         this address leads to this host, to the same ports
//   203.0.113.5:31000   this port of it leads to the same port here, and this process listens
//   there;
//                       the next process of this host (LOCAL_RANK) has the next port
//   none                nothing leads here: this process calls the others
//
// Names are resolved here; [brackets] enclose an IPv6 address before a port.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ip_address.h"

namespace q7x2 {

struct Advertised {
  bool behind_nat = false;         ///< Q7X2_ADVERTISE is set
  std::vector<IpAddress> outside;  ///< that lead here; empty: none does
  uint16_t port = 0;               ///< where this process must listen; 0: at any port

  /// Throws Error(kInvalidArgument).
  static Advertised of_environment();
};

}  // namespace q7x2
