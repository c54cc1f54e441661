// EventHooks: what tools of c10d, such as PyTorch's flight recorder, want to be told of a group:
// which works have succeeded, and that one has failed or the group is about to be aborted.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "backend/torch_compat.h"
#include "backend/work.h"

namespace q7x2 {

/// Thread-safe.
class EventHooks final : public compat::Listeners, public std::enable_shared_from_this<EventHooks> {
 public:
  void add(int64_t number, Completion hook) override { set(completions_, number, std::move(hook)); }
  void add(int64_t number, Abort hook) override { set(aborts_, number, std::move(hook)); }
  void remove_completion(int64_t number) override { erase(completions_, number); }
  void remove_abort(int64_t number) override { erase(aborts_, number); }

  /// What a work calls when it is settled, and after that `then`, which may be null. Null if there
  /// is nothing to call.
  std::function<void(WorkQ7x2&)> expect(uint64_t key, std::function<void(WorkQ7x2&)> then) {
    if (!any_.load(std::memory_order_relaxed)) return then;
    return [self = shared_from_this(), key, then = std::move(then)](WorkQ7x2& done) {
      self->tell(key, done);
      if (then) then(done);
    };
  }
  /// The group is about to be aborted.
  void tell_abort() const {
    for (const auto& [number, hook] : copy_of(aborts_)) hook();
  }

 private:
  template <typename Hook>
  using Hooks = std::map<int64_t, Hook>;

  void tell(uint64_t key, WorkQ7x2& done) const {
    if (!done.isSuccess()) return tell_abort();
    for (const auto& [number, hook] : copy_of(completions_)) hook(key, done.getDuration());
  }
  template <typename Hook>
  void set(Hooks<Hook>& hooks, int64_t number, Hook hook) {
    const std::lock_guard<std::mutex> lock(mutex_);
    hooks[number] = std::move(hook);
    any_ = true;
  }
  template <typename Hook>
  void erase(Hooks<Hook>& hooks, int64_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    hooks.erase(number);
    any_ = !completions_.empty() || !aborts_.empty();
  }
  template <typename Hook>
  Hooks<Hook> copy_of(const Hooks<Hook>& hooks) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return hooks;
  }

  mutable std::mutex mutex_;
  Hooks<Completion> completions_;
  Hooks<Abort> aborts_;
  std::atomic<bool> any_{false};
};

}  // namespace q7x2
