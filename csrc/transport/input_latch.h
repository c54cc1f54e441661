// InputLatch: holds a task back until what it reads is in host memory.
//
// A device copies a tensor to the host in its own time. The task is submitted at once all the same,
// so that calls keep their order and their numbers. It begins to read when the latch opens. A task
// that reads its memory in order need not wait for all of it: it may read what has arrived.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "transport/locked.h"

namespace q7x2 {

class Runtime;
class Task;

class InputLatch {
 public:
  explicit InputLatch(std::weak_ptr<Runtime> runtime) : runtime_(std::move(runtime)) {}

  /// Whether all is there. Any thread; with the lock it does not change meanwhile.
  bool is_open() const noexcept { return arrived() == kAll; }
  /// So many bytes from the beginning of each region that the task reads are there, SIZE_MAX if all
  /// are. Any thread; with the lock it does not change meanwhile.
  size_t arrived() const noexcept { return arrived_.load(std::memory_order_acquire); }
  /// `task` hears of each arrival: Task::inputs_arrived. Only while it is closed.
  void hold(Locked& locked, std::weak_ptr<Task> task);
  /// The first `bytes` of each region are there, more than before. From any thread that does not
  /// hold the lock. What goes wrong fails the tasks.
  void raise(size_t bytes) noexcept;
  /// All is there. Once.
  void open() noexcept { raise(kAll); }

 private:
  static constexpr size_t kAll = SIZE_MAX;

  const std::weak_ptr<Runtime> runtime_;
  std::atomic<size_t> arrived_{0};
  std::vector<std::weak_ptr<Task>> held_;
};

}  // namespace q7x2
