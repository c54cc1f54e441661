// What a StreamLane is told when it is made, and the clock by which it measures.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace q7x2 {

using StreamClock = std::chrono::steady_clock;
using StreamTime = StreamClock::time_point;
using StreamDuration = StreamClock::duration;

class TlsContext;

/// Between which hosts a process wants many connections (Q7X2_STREAMS).
enum class StreamChoice : uint8_t {
  kNever,
  kFar,  ///< those whose latency is long
  kAlways,
};
/// Throws Error(kInvalidArgument).
StreamChoice stream_choice();

struct StreamOptions {
  /// Bytes that a path may bring before anybody has asked for them.
  size_t bounce_bytes = size_t{8} << 20;
  /// Messages up to this length may travel inside their envelope.
  size_t inline_bytes = 4096;
  /// Messages up to this length are copied when they are sent, so that the send is complete at
  /// once; but not more than this many bytes per path.
  size_t copied_message = size_t{256} << 10;
  size_t copied_bytes = size_t{4} << 20;
  /// Connections of a path.
  int fewest_connections = 2;
  int most_connections = 64;
  /// A path without a sign of life for this long is dead.
  StreamDuration silence = std::chrono::seconds(2);
  /// Connections are encrypted; null: they are not.
  std::shared_ptr<const TlsContext> tls;
  /// TCP's congestion control, where the kernel has it; empty: the kernel's choice.
  std::string congestion;
  std::function<StreamTime()> now = [] { return StreamClock::now(); };

  /// With Q7X2_SILENCE, Q7X2_CONGESTION and Q7X2_ENCRYPT. Throws Error(kInvalidArgument).
  static StreamOptions of_environment();
};

}  // namespace q7x2
