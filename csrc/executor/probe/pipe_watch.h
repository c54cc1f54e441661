// PipeWatch: when a stream between far hosts has found its rate.
//
// As long as TCP doubles what it sends, each round trip brings more than the best one before. Once
// several in a row bring no more, the pipe is full, or the connection has all the bytes on their
// way that it may have. So does the startup of BBR end: Cardwell et al., "BBR: congestion-based
// congestion control", ACM Queue, 2016.
#pragma once

#include <cstddef>

#include "transport/task/task.h"

namespace q7x2 {

class PipeWatch {
 public:
  /// `round_trip`: seconds.
  explicit PipeWatch(double round_trip);

  /// At `now` that many bytes have been acknowledged in all; in the order of time.
  void acknowledged(TimePoint now, size_t bytes);
  /// Also true after the most round trips or bytes that a stream may have.
  bool is_full() const;
  bool had_most_bytes() const { return bytes_ >= kMostBytes; }
  /// Bytes that may be on the way: as many more as have been acknowledged, so that TCP can double
  /// what it sends; once it grows no more, twice as many as the best round trip brought.
  size_t window() const;

 private:
  static constexpr double kShortestRound = 0.03;  // seconds
  static constexpr double kGrows = 1.25;
  static constexpr int kEnough = 3;
  static constexpr int kMostRounds = 14;
  static constexpr size_t kMostBytes = size_t{64} << 20;
  static constexpr size_t kLeastWindow = size_t{64} << 10;
  static constexpr size_t kMostWindow = size_t{32} << 20;

  const double seconds_;  // the time of a round
  TimePoint began_{};     // when the round began
  size_t before_ = 0;     // bytes, when it began
  size_t bytes_ = 0;
  double best_ = 0;  // bytes per second
  int rounds_ = 0;
  int without_growth_ = 0;
};

}  // namespace q7x2
