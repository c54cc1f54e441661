// CompletionHook: a function of the user's that is called for each work of a group.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>

#include "backend/work.h"

namespace q7x2 {

/// Shared with works, which may outlive the group.
class CompletionHook final : public std::enable_shared_from_this<CompletionHook> {
 public:
  using Function = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;

  explicit CompletionHook(Function function) : function_(std::move(function)) {}

  /// For a work that starts: what it calls once it is settled. The work is pending until that has
  /// been destroyed, called or not.
  std::function<void(WorkQ7x2&)> expect();
  void call(std::shared_ptr<c10d::WorkInfo> info) const;
  /// Waits until no work is pending. From inside a call, those whose calls also wait here are not
  /// waited for: a hook may destroy its group.
  void wait();

 private:
  void no_longer_pending();

  const Function function_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t pending_ = 0;
  size_t waiting_inside_ = 0;  // calls that are in `wait`
};

}  // namespace q7x2
