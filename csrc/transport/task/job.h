// Job: work of a task that needs no lock: arithmetic on memory that nothing else touches meanwhile.
//
// A task gives a job out while it holds the lock. Some thread runs it without the lock. Then the
// task is told, with the lock held again. A task with a job out is not done, also after an error.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>

namespace q7x2 {

class Task;

class Job {
 public:
  Job() = default;
  virtual ~Job() = default;
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  using TimePoint = std::chrono::steady_clock::time_point;

  /// Without the lock, in any thread. What the work throws is kept for the task. Not of a job whose
  /// work a device does.
  void run() noexcept {
    began_ = ended_ = {};
    try_begin();
  }
  /// The same for work that is worth two looks at the clock. False: a device goes on with it. It
  /// may be complete already, and the job gone.
  bool run_timed() noexcept {
    began_ = std::chrono::steady_clock::now();
    ended_ = {};
    if (!try_begin()) return false;
    ended_ = std::chrono::steady_clock::now();
    return true;
  }
  /// Throws what the work threw.
  void check() const {
    if (error_) std::rethrow_exception(error_);
  }

  // Only after run_timed.
  TimePoint began() const { return began_; }
  TimePoint ended() const { return ended_; }

 protected:
  virtual void work() = 0;
  /// Does the work, or enqueues it on a device and returns false. Then JobQueue::completed follows.
  virtual bool begin() {
    work();
    return true;
  }
  /// From inside `work`.
  bool is_timed() const { return began_ != TimePoint(); }
  /// From inside `begin`, which then returns false: keeps the exception that is handled now.
  void keep_error() noexcept { error_ = std::current_exception(); }

 private:
  friend class JobQueue;

  bool try_begin() noexcept {
    try {
      error_ = nullptr;
      return begin();
    } catch (...) {
      error_ = std::current_exception();
      return true;
    }
  }

  Task* task_ = nullptr;
  size_t bytes_ = 0;
  Job* next_ = nullptr;
  TimePoint began_{};
  TimePoint ended_{};
  std::exception_ptr error_;
};

}  // namespace q7x2
