#include "transport/task/completion_queue.h"

#include <utility>

#include "transport/task/parking.h"

namespace q7x2 {

void Completion::post_after(const StreamCalls& calls, void* stream,
                            std::unique_ptr<Completion> completion) {
  const auto call = [](void* completed) {
    CompletionQueue::post(std::unique_ptr<Completion>(static_cast<Completion*>(completed)));
  };
  check_stream_call(calls.call_host(stream, call, completion.get()),
                    "a call of a stream to the host");
  completion.release();
}

void CompletionQueue::post(std::unique_ptr<Completion> completion) noexcept {
  const std::shared_ptr<CompletionQueue> queue = std::exchange(completion->queue_, nullptr);
  const std::lock_guard lock(queue->mutex_);
  if (queue->parking_ == nullptr) return;
  Completion* const added = completion.get();
  (queue->first_ ? queue->last_->next_ : queue->first_) = std::move(completion);
  queue->last_ = added;
  queue->is_empty_ = false;
  queue->parking_->note_activity();
  queue->parking_->wake_driver();
  queue->parking_->wake_waiters();
}

std::unique_ptr<Completion> CompletionQueue::take() {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Completion> all = std::move(first_);
  is_empty_ = true;
  return all;
}

bool CompletionQueue::deliver(Locked& locked) {
  if (is_empty()) return false;
  std::unique_ptr<Completion> next = take();
  const bool any = next != nullptr;
  while (next) {
    next->deliver(locked);
    next = std::move(next->next_);
  }
  return any;
}

void CompletionQueue::close() {
  std::unique_ptr<Completion> next;
  {
    const std::lock_guard lock(mutex_);
    parking_ = nullptr;
  }
  next = take();
  while (next) next = std::move(next->next_);
}

}  // namespace q7x2
