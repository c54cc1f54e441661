// SlidingWindow: when a connection may send that keeps at most a window of bytes on their way.
//
//   bytes   |0 .......... W|W .......... 2W|      A byte leaves a round trip after the one that was
//   leave   |0 ... W / rate|round trip ...        sent a window before, when that is acknowledged.
#pragma once

#include <algorithm>
#include <deque>

namespace q7x2 {

class SlidingWindow {
 public:
  /// `round_trip`: seconds.
  SlidingWindow(double bytes, double round_trip) : window_(bytes), round_trip_(round_trip) {}

  /// Takes a message whose first byte could leave at `begin` and whose last one at `end`. Messages
  /// come in the order of time. Returns when the last byte leaves.
  double pass(double begin, double end, double bytes) {
    const double pace = (end - begin) / bytes;
    for (double left = bytes; left > 0;) {
      const double piece = std::min(left, window_);
      left -= piece;
      const double first = std::max(begin, allowed(sent_));
      const double last = std::max({first, end - left * pace, allowed(sent_ + piece)});
      sent_ += piece;
      pieces_.push_back({sent_, piece, first, last});
      begin = last;
    }
    return begin;
  }

 private:
  struct Piece {
    double end;  // bytes so far
    double bytes;
    double began, ended;  // seconds
  };

  /// When all bytes before that position may have left. Positions do not decrease.
  double allowed(double position) {
    const double before = position - window_;
    if (before <= 0) return 0;
    while (pieces_.front().end < before) pieces_.pop_front();
    const Piece& piece = pieces_.front();
    const double part = 1 - (piece.end - before) / piece.bytes;
    return piece.began + part * (piece.ended - piece.began) + round_trip_;
  }

  double window_;
  double round_trip_;
  double sent_ = 0;
  std::deque<Piece> pieces_;
};

}  // namespace q7x2
