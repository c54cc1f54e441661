// InputLatch: holds a task back until its input has arrived.
//
// A device computes a tensor, and copies it to the host, asynchronously. The task is submitted at
// once all the same, so that calls keep their order and their numbers. It begins to read when the
// latch opens. A task that reads its memory in order may read what has arrived, before all has.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "transport/task/completion_queue.h"
#include "transport/ucx/locked.h"

namespace q7x2 {

class Task;

class InputLatch : public std::enable_shared_from_this<InputLatch> {
 public:
  explicit InputLatch(std::shared_ptr<CompletionQueue> queue) : queue_(std::move(queue)) {}

  /// Whether all input has arrived. Any thread; does not change while the lock is held.
  bool is_open() const noexcept { return arrived() == kAll; }
  /// Number of leading bytes of each input region that have arrived; SIZE_MAX if all have. Any
  /// thread; does not change while the lock is held.
  size_t arrived() const noexcept { return arrived_.load(std::memory_order_acquire); }
  /// `task` is told of each arrival (Task::inputs_arrived). Only while the latch is closed.
  void hold(Locked& locked, std::weak_ptr<Task> task);
  /// To be posted when the first `bytes` bytes of each region have arrived, which must be more than
  /// before; without a value, when all have. An error of the device fails the tasks.
  std::unique_ptr<Completion> arrival(std::optional<size_t> bytes = {});

 private:
  class Arrival;
  static constexpr size_t kAll = SIZE_MAX;

  const std::shared_ptr<CompletionQueue> queue_;
  std::atomic<size_t> arrived_{0};
  std::vector<std::weak_ptr<Task>> held_;
};

}  // namespace q7x2
