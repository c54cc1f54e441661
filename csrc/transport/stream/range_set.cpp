#include "transport/stream/range_set.h"

#include <algorithm>

namespace q7x2 {

uint64_t RangeSet::add(ByteRange range) {
  if (range.first >= range.last) return 0;
  // Those that it overlaps or touches become one with it.
  const auto begin =
      std::lower_bound(ranges_.begin(), ranges_.end(), range.first,
                       [](const ByteRange& each, uint64_t number) { return each.last < number; });
  auto end = begin;
  uint64_t before = 0;
  while (end != ranges_.end() && end->first <= range.last) {
    before += end->size();
    range = {std::min(range.first, end->first), std::max(range.last, end->last)};
    ++end;
  }
  if (begin == end) {
    ranges_.insert(begin, range);
  } else {
    *begin = range;
    ranges_.erase(begin + 1, end);
  }
  covered_ += range.size() - before;
  return range.size() - before;
}

ByteRange RangeSet::around(uint64_t number) const {
  const auto found =
      std::upper_bound(ranges_.begin(), ranges_.end(), number,
                       [](uint64_t wanted, const ByteRange& each) { return wanted < each.last; });
  return found != ranges_.end() && found->first <= number ? *found : ByteRange{number, number};
}

bool RangeSet::contains(ByteRange range) const {
  return range.first >= range.last || around(range.first).last >= range.last;
}

uint64_t RangeSet::first_missing() const {
  return ranges_.empty() || ranges_.front().first > 0 ? 0 : ranges_.front().last;
}

void RangeSet::clear() {
  ranges_.clear();
  covered_ = 0;
}

}  // namespace q7x2
