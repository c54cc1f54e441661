// Far pairs: how the probe measures hosts that a message takes milliseconds to.
//
//   stream   TCP sends little at first, and twice as much in each round trip. The stream goes on
//            until that ends, and the last round trips count: the rate of a warm connection.
//   train    Long messages, one at a time, over the warm connection. A message takes half a round
//            trip and its bytes at the rate of the path, and the acknowledgement the other half.
//            Many connections have no train: what their stream carried is the rate of the path.
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

/// How long streams take that share a line, or have many connections: as long as each other.
double seconds_of_far_stream(double round_trip);

/// Bytes of a message of a train: somewhat less than what the connection has on the way at `rate`,
/// so that it need not wait, and long enough that messages of several pairs meet on their way.
uint64_t train_bytes(double rate, double round_trip);

/// From one far host to another, as it was measured.
struct FarStream {
  int from = 0;  ///< hosts
  int to = 0;
  double warm = 0;  ///< bytes per second of a warm connection
  double round_trip = 0;
  uint64_t bytes = 0;  ///< the length of a message of the train; 0: there was none
  double seconds = 0;  ///< until it was acknowledged
  double spread = 0;   ///< the range of the rates that make `warm`, over `warm`
};
/// What it carries.
struct FarFlow {
  double rate = 0;    ///< bytes per second of the path, while something is on the way
  double window = 0;  ///< bytes that one connection keeps on the way; 0: it fills the path
  double spread = 0;  ///< the same for all streams of the line together
};
/// The rates of streams between far hosts, in both directions. Streams from one site to another ran
/// at once and share a line. If all together fill it, each has an equal part of its rate, because
/// what TCP gives to each of them within a second depends on chance. If not, they are bounded by
/// their windows.
///
/// A stream of which a delay ends the slow start too early has a small window for some seconds. So
/// between two sites the largest window counts, for both directions. `sites`: by host.
std::vector<FarFlow> far_flows(const std::vector<FarStream>& streams,
                               const std::vector<int>& sites);

/// Whether two directions of a pair, one after the other in `flows`, differ so much that the slow
/// start of one of them may have ended too early. On a connection that is warm it does not.
bool are_lopsided(const std::vector<Measurements::Flow>& flows);
/// Whether `now` counts and not `before`, which was measured between the same hosts: it is
/// steadier, unless one of them was held up.
bool is_better(const Measurements::Flow& now, const Measurements::Flow& before);

/// The site of each host: hosts that are near each other. If all are far from each other, each is
/// one of its own.
std::vector<int> sites_of(size_t hosts, const std::vector<Measurements::Ping>& pings);

/// The rounds of a tournament with what is to be streamed in each: all near pairs. Of the far pairs
/// between two sites those of one round, the one in which most of them meet, because a stream
/// between far hosts takes a dozen round trips.
std::vector<std::vector<std::pair<int, int>>> streamed_rounds(
    const std::vector<std::vector<std::pair<int, int>>>& rounds, const std::vector<int>& sites,
    const std::vector<Measurements::Ping>& pings);

}  // namespace q7x2
