// LinkMeter: how much connections have sent since the last call.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <utility>

#include "base/ip_address.h"

namespace q7x2 {

/// The kernel's counters of a TCP connection.
struct ConnectionTotals {
  IpEndpoint peer{};
  uint16_t local_port = 0;
  uint64_t acknowledged = 0;  ///< bytes
  /// Microseconds during which sent bytes were not acknowledged, without those during which the
  /// receiver had no room.
  uint64_t busy = 0;
};

/// The target of connections: a host, over the shared network or over a private link.
struct Way {
  int host = 0;
  bool is_private = false;

  auto operator<=>(const Way&) const = default;
};

struct Connection {
  Way way;
  ConnectionTotals totals;
};

class LinkMeter {
 public:
  struct Sent {
    uint64_t bytes = 0;
    uint64_t busy = 0;  ///< microseconds
  };

  /// Counts since the last call. A new connection counts from its beginning.
  std::map<Way, Sent> take(std::span<const Connection> connections) {
    std::map<Way, Sent> sent;
    Totals all;
    for (const auto& [way, totals] : connections) {
      const Key key{totals.peer, totals.local_port, way.is_private};
      const auto before = totals_.find(key);
      const Sent last = before == totals_.end() ? Sent{} : before->second;
      // Another connection may use the same ports as one that was closed.
      const bool is_same = totals.acknowledged >= last.bytes && totals.busy >= last.busy;
      sent[way].bytes += totals.acknowledged - (is_same ? last.bytes : 0);
      sent[way].busy += totals.busy - (is_same ? last.busy : 0);
      all[key] = {totals.acknowledged, totals.busy};
    }
    totals_ = std::move(all);
    return sent;
  }

 private:
  using Key = std::tuple<IpEndpoint, uint16_t, bool>;
  using Totals = std::map<Key, Sent>;

  Totals totals_;
};

}  // namespace q7x2
