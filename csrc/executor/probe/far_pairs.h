// Far pairs: how the probe measures hosts that a message takes milliseconds to.
//
//   stream   TCP sends little at first, and twice as much in each round trip. The stream goes on
//            until that ends, and the last round trips count: the rate of a warm connection.
//   train    Long messages, one at a time, over the warm connection. A message takes half a round
//            trip and its bytes at the rate of the path, and the acknowledgement the other half.
//
//   bytes on the way                 .----------  window: what one connection keeps on the way
//                               .---'
//                           .--'
//                  ____.---'
//                  0   1   2   3   4   5   6   round trips
//
// A connection that is slower than its path is bounded by its window: by buffers of the kernel, or
// by losses. Messages up to the window then take the rate of the path, and only longer ones that of
// the connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "fabric/measurements.h"

namespace q7x2 {

/// Seconds. Below it slow start is over within the first milliseconds of a stream.
constexpr double kFarRoundTrip = 2e-3;
inline bool is_far(double round_trip) {
  return round_trip > kFarRoundTrip;
}

/// Bytes of a message of a train: about half of what the connection has on the way at `rate`.
uint64_t train_bytes(double rate, double round_trip);

/// What a far flow carries.
struct FarFlow {
  double rate = 0;    ///< bytes per second of the path, while something is on the way
  double window = 0;  ///< bytes that one connection keeps on the way; 0: it fills the path
};
/// `warm`: bytes per second of a warm connection. `seconds`: from a message of `bytes` bytes to its
/// acknowledgement.
FarFlow far_flow(double warm, double round_trip, uint64_t bytes, double seconds);

/// The rounds of a tournament with what is to be streamed in each: all near pairs. Of the far pairs
/// between two sites those of one round, the one in which most of them meet, because a stream
/// between far hosts takes a dozen round trips. Hosts that are near each other are a site.
std::vector<std::vector<std::pair<int, int>>> streamed_rounds(
    const std::vector<std::vector<std::pair<int, int>>>& rounds, size_t hosts,
    const std::vector<Measurements::Ping>& pings);

}  // namespace q7x2
