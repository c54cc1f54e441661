// When a compressing hook sends full precision: a policy that needs no facts. It has the step only,
// so C++ asks it without Python. What other policies decide (parameter_policy.h) comes on top.
#pragma once

#include <cstdint>

namespace q7x2 {

/// The first `start` steps, and of those after them, `length` at the end of every `period`.
struct FullPrecision {
  uint64_t start = 0;
  uint64_t period = 0;  ///< 0: no bursts
  uint64_t length = 1;

  bool at(uint64_t step) const {
    if (step < start) return true;
    return period > 0 && (step - start) % period >= period - length;
  }
};

}  // namespace q7x2
