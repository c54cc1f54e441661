// PortRange: the TCP ports at which this process may listen, as Q7X2_PORT_RANGE says.
//
// A firewall between the hosts of a job must let some ports pass. All ports that q7x2 opens are in
// the range: UCX's ports for data and the port for heartbeats. torch opens the port of the store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/owned_fd.h"

namespace q7x2 {

struct PortRange {
  uint16_t first = 0;
  uint16_t last = 0;

  /// Nothing if Q7X2_PORT_RANGE is unset; the kernel then chooses. Throws Error(kInvalidArgument)
  /// if the value is no range of ports.
  static std::optional<PortRange> of_environment();

  size_t size() const { return size_t{last} - first + 1; }
  bool contains(uint16_t port) const { return first <= port && port <= last; }
  /// "20000-20099"
  std::string text() const;
  /// Port number `index` of the range; after the last port it starts again at the first.
  uint16_t at(size_t index) const { return static_cast<uint16_t>(first + index % size()); }
  /// Whether no port of the range is free at all addresses.
  bool is_used_up() const;
};

/// While it exists, no other process of q7x2 in this network namespace takes a port of a range. So
/// a port that was found to be free is still free when it is used. The constructor waits for other
/// processes, for some seconds at most.
class PortTurn {
 public:
  PortTurn();

 private:
  OwnedFd name_;
};

/// The error message if no port is left. `purpose`: "heartbeats".
std::string used_up(const PortRange& range, const std::string& purpose);

}  // namespace q7x2
