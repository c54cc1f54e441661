#include "transport/locked.h"

#include "base/error.h"

namespace q7x2 {

Locked& ReactorLock::held() const {
  if (holder_ == nullptr) {
    throw Error(ErrorCode::kInternal, "the reactor's lock is needed here, and nobody holds it");
  }
  return *holder_;
}

Locked::Locked(ReactorLock& lock) : lock_(lock) {
  lock.home_.require("a q7x2 group");
  lock.mutex_.lock();
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
