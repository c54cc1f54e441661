// LinkMeter: what connections have sent since it was last asked.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <utility>

namespace q7x2 {

/// What the kernel counts of a TCP connection.
struct ConnectionTotals {
  uint32_t peer = 0;  ///< IPv4, in host byte order
  uint16_t local_port = 0;
  uint16_t peer_port = 0;
  uint64_t acknowledged = 0;  ///< bytes
  /// Microseconds in which sent bytes were not acknowledged, without those in which the receiver
  /// had no room.
  uint64_t busy = 0;
};

class LinkMeter {
 public:
  struct Sent {
    uint64_t bytes = 0;
    uint64_t busy = 0;  ///< microseconds
  };

  /// By peer, since the last call. A connection that is new counts from its beginning.
  std::map<uint32_t, Sent> take(std::span<const ConnectionTotals> connections) {
    std::map<uint32_t, Sent> sent;
    Totals totals;
    for (const ConnectionTotals& each : connections) {
      const Key key{each.peer, each.local_port, each.peer_port};
      const auto before = totals_.find(key);
      const Sent last = before == totals_.end() ? Sent{} : before->second;
      // Another connection may have the ports of one that was closed.
      const bool is_same = each.acknowledged >= last.bytes && each.busy >= last.busy;
      sent[each.peer].bytes += each.acknowledged - (is_same ? last.bytes : 0);
      sent[each.peer].busy += each.busy - (is_same ? last.busy : 0);
      totals[key] = {each.acknowledged, each.busy};
    }
    totals_ = std::move(totals);
    return sent;
  }

 private:
  using Key = std::tuple<uint32_t, uint16_t, uint16_t>;
  using Totals = std::map<Key, Sent>;

  Totals totals_;
};

}  // namespace q7x2
