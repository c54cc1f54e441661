// Coalescing: works of c10d calls that share one Work, between startCoalescing and endCoalescing.
//
// Coalesced calls start at once; what they share is the Work that completes with the last of them.
// An exception between the two calls leaves out the second one. So a new beginning is the end of
// what was begun before it, whose works go on by themselves.
#pragma once

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "backend/work.h"

namespace q7x2 {

/// Any thread.
class Coalescing {
 public:
  using Works = std::vector<c10::intrusive_ptr<WorkQ7x2>>;

  void begin() {
    const std::lock_guard<std::mutex> lock(mutex_);
    works_.emplace();
    limit_ = kLimit;
  }
  /// Keeps a work that was started, if one of these is in progress. If the end never comes, works
  /// must not be held for ever.
  void add(const c10::intrusive_ptr<WorkQ7x2>& work) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!works_) return;
    if (works_->size() >= limit_) {
      std::erase_if(*works_, [](const auto& part) { return part->has_succeeded(); });
      limit_ = std::max(kLimit, 2 * works_->size());
    }
    works_->push_back(work);
  }
  /// Empty: there was no beginning.
  std::optional<Works> end() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(works_, std::nullopt);
  }

 private:
  static constexpr size_t kLimit = 64;  // works that are all kept

  std::mutex mutex_;
  std::optional<Works> works_;
  size_t limit_ = 0;  // from here on those that have succeeded are let go
};

}  // namespace q7x2
