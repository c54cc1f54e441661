// Order and Report: what rank 0 tells a rank during a probe, and what that rank has measured.
//
// They travel as they are in memory between ranks of one build: the survey has refused others.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

namespace q7x2 {

struct Order {
  /// kTrain: long messages one at a time, between hosts that are far from each other.
  enum class Act : int32_t { kPing, kStream, kTrain, kEnd };

  static constexpr uint32_t kTag = 0x7000;
  static constexpr uint32_t kReportTag = 0x7001;

  Act act = Act::kEnd;
  int32_t peer = -1;
  int32_t first = 0;  ///< who begins a ping; over UCX between far hosts the only one that streams
  int32_t wire = 0;
  double seconds = 0;     ///< how long a stream runs
  double round_trip = 0;  ///< to a far host, in seconds; 0: the host is near
  uint64_t bytes = 0;     ///< length of each message of a train
};
static_assert(std::is_trivially_copyable_v<Order>);

/// What a conversation has measured. A ping: round trip, spread, overhead. A stream: of what came,
/// rate and spread; the rate that was acknowledged of what went; the burst of what came. A train:
/// the time from a message to its acknowledgement, at the end that sends.
struct Report {
  std::array<double, 4> figures{};
};
static_assert(std::is_trivially_copyable_v<Report>);

}  // namespace q7x2
