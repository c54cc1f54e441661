// Coalescing: collects the works of the c10d calls between startCoalescing and endCoalescing.
//
// Coalesced calls start at once. They share the Work that is complete when the last of them is. If
// an exception prevents endCoalescing, the next startCoalescing drops the works collected so far,
// which continue by themselves.
#pragma once

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "backend/work.h"

namespace q7x2 {

/// Thread-safe.
class Coalescing {
 public:
  using Works = std::vector<c10::intrusive_ptr<WorkQ7x2>>;

  void begin() {
    const std::lock_guard<std::mutex> lock(mutex_);
    works_.emplace();
    limit_ = kLimit;
  }
  /// Keeps a work that was started, if works are being collected. If endCoalescing is never called,
  /// works that have succeeded are dropped from time to time.
  void add(const c10::intrusive_ptr<WorkQ7x2>& work) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!works_) return;
    if (works_->size() >= limit_) {
      std::erase_if(*works_, [](const auto& part) { return part->has_succeeded(); });
      limit_ = std::max(kLimit, 2 * works_->size());
    }
    works_->push_back(work);
  }
  /// Returns the works. Empty if `begin` was not called.
  std::optional<Works> end() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(works_, std::nullopt);
  }

 private:
  static constexpr size_t kLimit = 64;  // up to this many works, all are kept

  std::mutex mutex_;
  std::optional<Works> works_;
  size_t limit_ = 0;  // at this many works, those that have succeeded are dropped
};

}  // namespace q7x2
