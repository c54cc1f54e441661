#include "transport/ucx/locked.h"

#include <sched.h>

#include <chrono>

#include "base/error.h"

namespace q7x2 {
namespace {

// Waiting threads are woken when the lock is released. A thread that still does not have it after
// this time does not get a processor.
constexpr std::chrono::milliseconds kPatience{5};

}  // namespace

Locked& ReactorLock::held() const {
  if (holder_ == nullptr) {
    throw Error(ErrorCode::kInternal, "the reactor's lock is needed here, and nobody holds it");
  }
  return *holder_;
}

void ReactorLock::let_others_first() const {
  const auto give_up = std::chrono::steady_clock::now() + kPatience;
  while (is_wanted() && std::chrono::steady_clock::now() < give_up) {
    ::sched_yield();
  }
}

Locked::Locked(ReactorLock& lock) : lock_(lock) {
  lock.home_.require("a q7x2 group");
  if (!lock.mutex_.try_lock()) {
    ++lock.num_waiting_;
    lock.mutex_.lock();
    --lock.num_waiting_;
  }
  lock.holder_ = this;
}

Locked::Locked(ReactorLock& lock, std::adopt_lock_t) : lock_(lock) {
  lock.holder_ = this;
}

Locked::~Locked() {
  lock_.holder_ = nullptr;
  lock_.mutex_.unlock();
}

}  // namespace q7x2
