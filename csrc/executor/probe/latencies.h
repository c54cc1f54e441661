// Latencies: the first thing that a probe measures. Leaders of hosts ping all that they will meet
// at the same time, unasked, and hand in the results with the description of their host. So the
// latencies of all pairs take as many round trips as those of one pair.
//
//   h0   h1   h2   h3      each pair: ping > < pong   ping > < pong   ...
//   '----'    |    |                  (connects)       (counts)     ...
//   '---------'    |
//   '--------------'  ...
//
// Hosts that are nearer than kLongRoundTrip are pinged once more without the others, so that they
// have their processors for themselves. Beyond it other work adds little to the distance.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/group/group.h"

namespace q7x2 {

/// From one leader to another, as the first of the two has measured it.
struct Latency {
  int a = 0;  ///< hosts
  int b = 0;
  double round_trip = 0;  ///< seconds, the shortest: whatever else runs only adds
  double spread = 0;      ///< the longest less the shortest, over the shortest
};

/// Leaders call it, with the ranks of all leaders by host, and the pairs of hosts that meet.
/// `far_pings`: how many long round trips count, at least 2. Returns what this one has measured:
/// its pairs in which it is the first. Throws the Error of a failed group.
std::vector<Latency> measure_latencies(const std::shared_ptr<Group>& group,
                                       const std::vector<int>& leaders,
                                       const std::vector<std::pair<int, int>>& pairs, int far_pings,
                                       std::chrono::milliseconds timeout);

/// Seconds. A stream takes a dozen round trips, so longer ones let rates better be measured later.
/// Near hosts do not seem to be that far even on a busy machine.
inline constexpr double kLongRoundTrip = 20e-3;
/// Whether any round trip is that long.
bool take_long(const std::vector<Latency>& latencies);

std::string encode_latencies(const std::vector<Latency>& latencies);
/// Throws Error(kMismatch) unless the bytes are latencies between two of `hosts` hosts each.
std::vector<Latency> decode_latencies(const std::string& bytes, int hosts);

}  // namespace q7x2
