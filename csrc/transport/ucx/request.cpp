#include "transport/ucx/request.h"

namespace q7x2 {

void RequestList::add(PendingRequest& pending) {
  pending.list = this;
  pending.previous = nullptr;
  pending.next = first_;
  if (first_ != nullptr) {
    first_->previous = &pending;
  }
  first_ = &pending;
}

void RequestList::remove(PendingRequest& pending) {
  (pending.previous != nullptr ? pending.previous->next : first_) = pending.next;
  if (pending.next != nullptr) {
    pending.next->previous = pending.previous;
  }
}

void Completions::add(PendingRequest& pending, ucs_status_t status, size_t length, uint64_t tag) {
  pending.completed = true;
  pending.status = status;
  pending.length = length;
  pending.tag = tag;
  pending.next_complete = nullptr;
  (last_ == nullptr ? first_ : last_->next_complete) = &pending;
  last_ = &pending;
}

PendingRequest* Completions::take() {
  PendingRequest* const pending = first_;
  if (pending != nullptr) {
    first_ = pending->next_complete;
    if (first_ == nullptr) last_ = nullptr;
  }
  return pending;
}

PendingRequest& RequestPool::take() {
  constexpr size_t kBlock = 256;
  if (free_ == nullptr) {
    blocks_.push_back(std::make_unique<PendingRequest[]>(kBlock));
    for (size_t i = 0; i < kBlock; ++i) {
      release(blocks_.back()[i]);
    }
  }
  PendingRequest& pending = *free_;
  free_ = pending.next;
  pending = {};
  return pending;
}

void RequestPool::release(PendingRequest& pending) {
  pending.next = free_;
  free_ = &pending;
}

}  // namespace q7x2
