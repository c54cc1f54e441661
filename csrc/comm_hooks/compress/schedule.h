// When a compressing hook sends full precision: a policy that needs only the number of the step, so
// C++ evaluates it without Python. Other policies (parameter_policy.h) are applied in addition.
#pragma once

#include <cstdint>

namespace q7x2 {

/// The first `start` steps, and after them the last `length` steps of every `period`.
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
