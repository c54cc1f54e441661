// RowCensus: the volume of rows in the last sparse call of a kind (plan/cost/row_costs.h).
#pragma once

#include <mutex>
#include <optional>

#include "plan/cost/row_costs.h"

namespace q7x2 {

/// Thread-safe.
class RowCensus {
 public:
  void note(const RowVolume& volume) {
    const std::lock_guard<std::mutex> lock(mutex_);
    last_ = volume;
  }
  std::optional<RowVolume> last() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return last_;
  }

 private:
  mutable std::mutex mutex_;
  std::optional<RowVolume> last_;
};

}  // namespace q7x2
