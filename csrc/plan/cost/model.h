// What the cost model and the simulator take for granted of machines and networks.
#pragma once

#include <cstddef>

namespace q7x2::model {

/// A core that turns to another rank. Ranks only do that where there are more of them than cores.
inline constexpr double kSwitchSeconds = 2e-6;
/// Until the receiver of a message on such a host has its turn: whoever looks for messages keeps
/// its core for some microseconds before it offers it to others.
inline constexpr double kTurnSeconds = 4e-6;
/// Memory is passed three times by a copy (read, fetch of the lines that are written, write) and by
/// an addition to a sum (read both, write), by which `reduce_rate` is measured.
inline constexpr double kPasses = 3;
/// The share of the time of a copy that it takes to put a tile into shared memory that was folded
/// just now: it is read from the nearest cache.
inline constexpr double kFoldedShare = (kPasses - 1) / kPasses;
/// The share of a NIC's ingress that is lost for each further host that sends to it in one Plan:
/// TCP's flows into one port push each other back. It was measured up to 8 hosts. More flows share
/// the same queue, so the loss does not grow beyond twice as many.
inline constexpr double kIncast = 0.03;
inline constexpr int kMostIncast = 15;
/// Only with messages longer than that: shorter ones are over before flows push each other back.
inline constexpr double kShortBytes = 64 * 1024;
/// What TCP sends at first, and after a silence: ten packets. Then twice as much in each round
/// trip.
inline constexpr double kFirstFlight = 14480;
/// What the elements of a flat buffer usually are; decides who gets a part of a tiny one.
inline constexpr size_t kElementBytes = 4;

/// Number of round trips in which a connection waits for acknowledgements until it has sent `bytes`
/// after a silence (slow start).
inline int slow_start_rounds(double bytes) {
  int rounds = 0;
  double flight = kFirstFlight;
  for (double sent = flight; sent < bytes; sent += flight) {
    flight *= 2;
    ++rounds;
  }
  return rounds;
}

/// What is left of a NIC's ingress for `senders` hosts together, as a share.
inline double incast_share(int senders) {
  const int more = senders > 1 ? senders - 1 : 0;
  return 1 / (1 + kIncast * (more < kMostIncast ? more : kMostIncast));
}

}  // namespace q7x2::model
