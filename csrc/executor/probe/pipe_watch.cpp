#include "executor/probe/pipe_watch.h"

#include <algorithm>
#include <chrono>

namespace q7x2 {

PipeWatch::PipeWatch(double round_trip) : seconds_(std::max(round_trip, kShortestRound)) {}

void PipeWatch::acknowledged(TimePoint now, size_t bytes) {
  bytes_ = bytes;
  if (began_ == TimePoint()) {
    began_ = now;
    before_ = bytes;
    return;
  }
  const double seconds = std::chrono::duration<double>(now - began_).count();
  if (seconds < seconds_) return;
  const double rate = static_cast<double>(bytes - before_) / seconds;
  without_growth_ = rate >= kGrows * best_ ? 0 : without_growth_ + 1;
  best_ = std::max(best_, rate);
  began_ = now;
  before_ = bytes;
  ++rounds_;
}

size_t PipeWatch::window() const {
  const size_t more = without_growth_ == 0 ? bytes_ : static_cast<size_t>(2 * best_ * seconds_);
  return std::min(kLeastWindow + more, kMostWindow);
}

bool PipeWatch::is_full() const {
  return without_growth_ >= kEnough || rounds_ >= kMostRounds || had_most_bytes();
}

}  // namespace q7x2
