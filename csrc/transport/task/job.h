// Job: work of a task that needs no lock: arithmetic on memory that nothing else uses meanwhile.
//
// A task queues a job while it holds the lock. Some thread runs the job without the lock. Then the
// task is told, with the lock held again. A task that has a queued or running job is not done, even
// after an error.
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

  /// Runs the work without the lock, in any thread. An exception is kept for the task. Not for a
  /// job that runs on a device.
  void run() noexcept {
    began_ = ended_ = {};
    try_begin();
  }
  /// The same, and measures the time by reading the clock twice. Returns false if a device
  /// continues the work; the job may then have completed already and been destroyed.
  bool run_timed() noexcept {
    began_ = std::chrono::steady_clock::now();
    ended_ = {};
    if (!try_begin()) return false;
    ended_ = std::chrono::steady_clock::now();
    return true;
  }
  /// Rethrows the exception of the work, if there was one.
  void check() const {
    if (error_) std::rethrow_exception(error_);
  }

  // Valid only after `run_timed`.
  TimePoint began() const { return began_; }
  TimePoint ended() const { return ended_; }

 protected:
  virtual void work() = 0;
  /// Does the work, or enqueues it on a device and returns false. Then JobQueue::completed follows.
  virtual bool begin() {
    work();
    return true;
  }
  /// To be called from `work`.
  bool is_timed() const { return began_ != TimePoint(); }
  /// To be called from `begin`, which then returns false: keeps the exception that is being
  /// handled.
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
