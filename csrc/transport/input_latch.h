// InputLatch: holds a task back until what it reads is in host memory.
//
// A device copies a tensor to the host in its own time. The task is submitted at once all the same,
// so that calls keep their order and their numbers. It begins to read when the latch opens.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "transport/locked.h"

namespace q7x2 {

class Runtime;
class Task;

class InputLatch {
 public:
  explicit InputLatch(std::weak_ptr<Runtime> runtime) : runtime_(std::move(runtime)) {}

  /// Any thread; with the lock it does not change meanwhile.
  bool is_open() const noexcept { return is_open_.load(std::memory_order_acquire); }
  /// `task` hears of the opening: Task::inputs_arrived. Only while it is closed.
  void hold(Locked& locked, std::weak_ptr<Task> task);
  /// Once, from any thread that does not hold the lock. What goes wrong fails the tasks.
  void open() noexcept;

 private:
  const std::weak_ptr<Runtime> runtime_;
  std::atomic<bool> is_open_{false};
  std::vector<std::weak_ptr<Task>> held_;
};

}  // namespace q7x2
