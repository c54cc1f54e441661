// RateHistory: the changes of rates of links and hosts that this process has noticed, for the
// ledger's file.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace q7x2 {

/// Any thread.
class RateHistory {
 public:
  struct Change {
    int64_t wall_ns = 0;  ///< nanoseconds since 1970
    std::string text;
  };

  static RateHistory& instance() {
    static RateHistory history;
    return history;
  }

  void add(std::string text) {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const std::lock_guard lock(mutex_);
    changes_.push_back({std::chrono::nanoseconds(now).count(), std::move(text)});
    if (changes_.size() > kMost) changes_.pop_front();
  }
  /// The newest changes, in order.
  std::vector<Change> changes() const {
    const std::lock_guard lock(mutex_);
    return {changes_.begin(), changes_.end()};
  }

 private:
  static constexpr size_t kMost = 100;

  mutable std::mutex mutex_;
  std::deque<Change> changes_;
};

}  // namespace q7x2
