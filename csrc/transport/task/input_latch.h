// InputLatch: holds a task back until what it reads is there.
//
// A device computes a tensor, and copies it to the host, in its own time. The task is submitted at
// once all the same, so that calls keep their order and their numbers. It begins to read when the
// latch opens. A task that reads its memory in order need not wait for all of it: it may read what
// has arrived.
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

  /// Whether all is there. Any thread; with the lock it does not change meanwhile.
  bool is_open() const noexcept { return arrived() == kAll; }
  /// So many bytes from the beginning of each region that the task reads are there, SIZE_MAX if all
  /// are. Any thread; with the lock it does not change meanwhile.
  size_t arrived() const noexcept { return arrived_.load(std::memory_order_acquire); }
  /// `task` hears of each arrival: Task::inputs_arrived. Only while it is closed.
  void hold(Locked& locked, std::weak_ptr<Task> task);
  /// To be posted when the first `bytes` of each region are there, more than before; none: all are.
  /// What goes wrong then fails the tasks.
  std::unique_ptr<Completion> arrival(std::optional<size_t> bytes = {});

 private:
  class Arrival;
  static constexpr size_t kAll = SIZE_MAX;

  const std::shared_ptr<CompletionQueue> queue_;
  std::atomic<size_t> arrived_{0};
  std::vector<std::weak_ptr<Task>> held_;
};

}  // namespace q7x2
