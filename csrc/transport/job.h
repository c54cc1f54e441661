// Job: work of a task that needs no lock: arithmetic on memory that nothing else touches meanwhile.
//
// A task gives a job out while it holds the lock. Some thread runs it without the lock. Then the
// task is told, with the lock held again. A task with a job out is not done, also after an error.
#pragma once

#include <cstddef>
#include <exception>

namespace q7x2 {

class Task;

class Job {
 public:
  Job() = default;
  virtual ~Job() = default;
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Without the lock, in any thread. What the work throws is kept for the task.
  void run() noexcept {
    try {
      error_ = nullptr;
      work();
    } catch (...) {
      error_ = std::current_exception();
    }
  }
  /// Throws what the work threw.
  void check() const {
    if (error_) std::rethrow_exception(error_);
  }

 protected:
  virtual void work() = 0;

 private:
  friend class JobQueue;

  Task* task_ = nullptr;
  size_t bytes_ = 0;
  Job* next_ = nullptr;
  std::exception_ptr error_;
};

}  // namespace q7x2
