#include "backend/completion_hook.h"

#include <chrono>
#include <utility>

#include "base/process.h"

namespace q7x2 {
namespace {

// The interval of checks whether the user has interrupted the wait.
constexpr std::chrono::milliseconds kNap{50};

thread_local const CompletionHook* calling = nullptr;  // the hook that this thread is calling

}  // namespace

std::function<void(WorkQ7x2&)> CompletionHook::expect() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++pending_;
  }
  const auto self = shared_from_this();
  const std::shared_ptr<void> pending(nullptr, [self](void*) { self->no_longer_pending(); });
  return [self, pending](WorkQ7x2& done) {
    self->call(std::make_shared<c10d::WorkInfo>(
        done.retrieveOpType(), done.getSequencenumber(), done.submitted(), done.finished(),
        std::chrono::duration<float>(done.finished() - done.submitted())));
  };
}

void CompletionHook::call(std::shared_ptr<c10d::WorkInfo> info) const {
  struct Inside {
    explicit Inside(const CompletionHook* hook) : before(std::exchange(calling, hook)) {}
    ~Inside() { calling = before; }
    const CompletionHook* before;
  } const inside(this);
  function_(std::move(info));
}

void CompletionHook::no_longer_pending() {
  const std::lock_guard<std::mutex> lock(mutex_);
  --pending_;
  changed_.notify_all();
}

void CompletionHook::wait() {
  const StayIfEnding stay;
  struct Waiting {
    explicit Waiting(CompletionHook& h) : hook(h), lock(h.mutex_), is_inside(calling == &h) {
      hook.waiting_inside_ += is_inside ? 1 : 0;
      hook.changed_.notify_all();
    }
    ~Waiting() {
      if (!lock.owns_lock()) lock.lock();
      hook.waiting_inside_ -= is_inside ? 1 : 0;
    }
    CompletionHook& hook;
    std::unique_lock<std::mutex> lock;
    const bool is_inside;
  } waiting(*this);
  while (pending_ > (waiting.is_inside ? waiting_inside_ : 0)) {
    changed_.wait_for(waiting.lock, kNap);
    waiting.lock.unlock();
    block_at_exit();
    Runtime::check_interrupt();
    waiting.lock.lock();
  }
}

}  // namespace q7x2
