// Latencies: the first thing that a probe measures. Leaders of hosts connect to the ports for
// heartbeats of all leaders that they will meet, at the same time. The kernels do the handshake and
// measure it. So it takes one round trip, and nothing that runs on the hosts makes it longer.
//
// Hosts that are nearer than kLongRoundTrip are pinged afterwards, because a message between them
// takes longer than a handshake. Beyond it that adds little to the distance.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "fabric/measurements.h"
#include "transport/peer/peer_info.h"

namespace q7x2 {

/// From one leader to another, as the first of the two has measured it.
struct Latency {
  int a = 0;  ///< hosts
  int b = 0;
  double round_trip = 0;  ///< seconds

  Measurements::Ping ping() const { return {.a = a, .b = b, .round_trip = round_trip}; }
};

/// The latencies of the pairs in which `host` is the first. `leaders`: by host. Leaves out hosts
/// that have no port, or that do not answer within seconds. `check`: called now and then; may
/// throw.
std::vector<Latency> measure_latencies(const std::vector<PeerInfo>& leaders, int host,
                                       const std::vector<std::pair<int, int>>& pairs,
                                       const std::function<void()>& check);

/// Seconds. A stream takes a dozen round trips, so longer ones let rates better be measured later.
/// Near hosts do not seem to be that far even on a busy machine.
inline constexpr double kLongRoundTrip = 20e-3;
/// Whether any round trip is that long.
bool take_long(const std::vector<Latency>& latencies);

std::string encode_latencies(const std::vector<Latency>& latencies);
/// Throws Error(kMismatch) unless the bytes are latencies between two of `hosts` hosts each.
std::vector<Latency> decode_latencies(const std::string& bytes, int hosts);

}  // namespace q7x2
