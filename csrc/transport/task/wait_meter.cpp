#include "transport/task/wait_meter.h"

namespace q7x2 {

void WaitMeter::end(TimePoint now) {
  if (!is_ending_) return;
  is_ending_ = false;
  const int64_t waited = std::chrono::nanoseconds(now - last_).count();
  last_ = now;
  total_ += waited;
  const auto known = shares_.begin() + static_cast<std::ptrdiff_t>(count_);
  auto share = std::find_if(shares_.begin(), known,
                            [this](const Share& each) { return each.rank == rank_; });
  if (share == known) {
    if (count_ < kRanks) {
      shares_[count_++] = {rank_, waited};
      return;
    }
    share = std::ranges::min_element(shares_, {}, &Share::nanoseconds);
    share->rank = rank_;
  }
  share->nanoseconds += waited;
}

WaitMeter::Share WaitMeter::longest() const {
  Share longest;
  for (size_t i = 0; i < count_; ++i) {
    if (shares_[i].rank >= 0 && shares_[i].nanoseconds > longest.nanoseconds) longest = shares_[i];
  }
  return longest;
}

}  // namespace q7x2
