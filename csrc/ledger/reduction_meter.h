// ReductionMeter: the rate at which this rank's reductions process bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace q7x2 {

/// The cost per byte depends on the kind of work, so only reductions count, by the bytes that they
/// read and write.
class ReductionMeter {
 public:
  struct Done {
    uint64_t bytes = 0;
    int64_t nanoseconds = 0;
  };

  /// Adds a reduction of `operands` blocks of `length` bytes.
  void add(size_t operands, size_t length, int64_t nanoseconds) {
    done_.bytes += (operands + 1) * length;
    done_.nanoseconds += nanoseconds;
  }
  /// The totals since the last call.
  Done take() { return std::exchange(done_, {}); }

 private:
  Done done_;
};

}  // namespace q7x2
