// CompletionHook: a function of the user that is called for each work of a group.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>

#include "backend/work.h"

namespace q7x2 {

/// Works share it, and may outlive the group.
class CompletionHook final : public std::enable_shared_from_this<CompletionHook> {
 public:
  using Function = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;

  explicit CompletionHook(Function function) : function_(std::move(function)) {}

  /// Called for a work that starts. Returns the function that the work calls once it is settled.
  /// The work is pending until that function has been destroyed, whether it was called or not.
  std::function<void(WorkQ7x2&)> expect();
  void call(std::shared_ptr<c10d::WorkInfo> info) const;
  /// Waits until no work is pending. A hook may call it, because it may destroy its group. Then
  /// works whose hooks are also inside `wait` do not count.
  void wait();

 private:
  void no_longer_pending();

  const Function function_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t pending_ = 0;
  size_t waiting_inside_ = 0;  // number of hook calls that are inside `wait`
};

}  // namespace q7x2
