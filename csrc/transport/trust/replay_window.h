// ReplayWindow: which numbers of a sequence have been seen, so that a message is accepted only
// once.
//
// Numbers may arrive a little out of order, because a short message may overtake a long one. A
// number that is 64 or more behind the highest counts as seen (RFC 4303, 3.4.3).
#pragma once

#include <cstdint>

namespace q7x2 {

class ReplayWindow {
 public:
  static constexpr uint64_t kWidth = 64;

  /// Marks `number` as seen. Returns false if it was seen already, or is too old. Numbers begin at
  /// 1.
  bool accept(uint64_t number) {
    if (number == 0) {
      return false;
    }
    if (number > highest_) {
      const uint64_t step = number - highest_;
      seen_ = step < kWidth ? seen_ << step : 0;
      seen_ |= 1;
      highest_ = number;
      return true;
    }
    const uint64_t behind = highest_ - number;
    const uint64_t bit = behind < kWidth ? uint64_t{1} << behind : 0;
    const bool is_new = bit != 0 && (seen_ & bit) == 0;
    seen_ |= bit;
    return is_new;
  }

 private:
  uint64_t highest_ = 0;
  uint64_t seen_ = 0;  // bit i stands for number highest_ - i
};

}  // namespace q7x2
