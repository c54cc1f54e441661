// ReductionMeter: how fast this rank adds up, as its reductions come to an end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace q7x2 {

/// Work on memory differs in what it costs per byte, so only reductions count, by the bytes that
/// they read and write.
class ReductionMeter {
 public:
  struct Done {
    uint64_t bytes = 0;
    int64_t nanoseconds = 0;
  };

  /// A reduction of `operands` blocks of `length` bytes.
  void add(size_t operands, size_t length, int64_t nanoseconds) {
    done_.bytes += (operands + 1) * length;
    done_.nanoseconds += nanoseconds;
  }
  /// Since the last call.
  Done take() { return std::exchange(done_, {}); }

 private:
  Done done_;
};

}  // namespace q7x2
