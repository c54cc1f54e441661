// RangeSet: which bytes of a message there are, or which numbers of a sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace q7x2 {

/// From `first` to before `last`.
struct ByteRange {
  uint64_t first = 0;
  uint64_t last = 0;

  uint64_t size() const { return last - first; }
  bool operator==(const ByteRange&) const = default;
};

class RangeSet {
 public:
  /// Returns how many of the numbers were not in the set. An empty range adds nothing.
  uint64_t add(ByteRange range);
  bool contains(ByteRange range) const;
  /// The range of the set in which `number` lies; empty if it lies in none.
  ByteRange around(uint64_t number) const;
  uint64_t covered() const { return covered_; }
  bool empty() const { return ranges_.empty(); }
  /// In order. They neither overlap nor touch.
  const std::vector<ByteRange>& ranges() const { return ranges_; }
  /// The smallest number from 0 on that is not in the set.
  uint64_t first_missing() const;
  void clear();

 private:
  std::vector<ByteRange> ranges_;
  uint64_t covered_ = 0;
};

}  // namespace q7x2
