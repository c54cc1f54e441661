// PortRange: the TCP ports at which this process may listen, as Q7X2_PORT_RANGE says.
//
// A firewall between the hosts of a job must let some ports pass. All that q7x2 opens lies in the
// range: UCX's ports for data and the port for heartbeats. The store is torch's.
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

  /// Nothing: Q7X2_PORT_RANGE is unset, and the kernel chooses. Throws Error(kInvalidArgument) for
  /// a value that is no range of ports.
  static std::optional<PortRange> of_environment();

  size_t size() const { return size_t{last} - first + 1; }
  bool contains(uint16_t port) const { return first <= port && port <= last; }
  /// "20000-20099"
  std::string text() const;
  /// The port with this number in the range, which begins again behind its end.
  uint16_t at(size_t index) const { return static_cast<uint16_t>(first + index % size()); }
  /// Whether no port is free at all addresses.
  bool is_used_up() const;
};

/// While it exists, no other process of q7x2 in this network takes a port of a range: between the
/// question whether one is free and its use nobody else takes it. It waits for others for some
/// seconds at most.
class PortTurn {
 public:
  PortTurn();

 private:
  OwnedFd name_;
};

/// What to say if no port is left. `purpose`: "heartbeats".
std::string used_up(const PortRange& range, const std::string& purpose);

}  // namespace q7x2
