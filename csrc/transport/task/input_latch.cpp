#include "transport/task/input_latch.h"

#include <utility>

#include "transport/task/task_host.h"

namespace q7x2 {

class InputLatch::Arrival final : public Completion {
 public:
  Arrival(std::shared_ptr<CompletionQueue> queue, std::shared_ptr<InputLatch> latch, size_t bytes)
      : Completion(std::move(queue)), latch_(std::move(latch)), bytes_(bytes) {}

 private:
  void deliver(Locked& locked) override {
    latch_->arrived_.store(bytes_, std::memory_order_release);
    for (const std::weak_ptr<Task>& held : latch_->held_) {
      std::shared_ptr<Task> task = held.lock();
      if (!task) continue;
      locked.task_host().inputs_arrived(locked, *task);
      locked.drop_later(std::move(task));
    }
  }

  const std::shared_ptr<InputLatch> latch_;
  const size_t bytes_;
};

void InputLatch::hold(Locked&, std::weak_ptr<Task> task) {
  held_.push_back(std::move(task));
}

std::unique_ptr<Completion> InputLatch::arrival(std::optional<size_t> bytes) {
  return std::make_unique<Arrival>(queue_, shared_from_this(), bytes.value_or(kAll));
}

}  // namespace q7x2
