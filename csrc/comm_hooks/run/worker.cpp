#include "comm_hooks/run/worker.h"

#include <exception>
#include <future>
#include <utility>

#include "base/error.h"

namespace q7x2 {

Worker::Worker(std::function<void()> set_up)
    : thread_([this, set_up = std::move(set_up)] {
        set_up();
        loop();
      }) {}

Worker::~Worker() {
  stop();
}

void Worker::post(Urgency urgency, std::function<void()> task) {
  home_.require("a communication hook");
  block_at_exit();
  if (is_ending()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stopped_) return;
    (urgency == Urgency::kNow ? now_ : later_).push_back(std::move(task));
  }
  changed_.notify_one();
}

void Worker::run(const std::function<void()>& task) {
  home_.require("a communication hook");
  if (is_current()) return task();
  auto done = std::make_shared<std::promise<void>>();
  std::future<void> result = done->get_future();
  post(Urgency::kLater, [&task, done = std::move(done)] {
    try {
      task();
      done->set_value();
    } catch (...) {
      done->set_exception(std::current_exception());
    }
  });
  try {
    result.get();
  } catch (const std::future_error&) {
    throw Error(ErrorCode::kAborted, "the hook's worker has been stopped");
  }
}

void Worker::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
  now_.clear();
  later_.clear();
}

void Worker::loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopped_ || !now_.empty() || !later_.empty(); });
    if (stopped_) return;
    auto& queue = now_.empty() ? later_ : now_;
    std::function<void()> task = std::move(queue.front());
    queue.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // what it owns is released without the lock
    lock.lock();
  }
}

}  // namespace q7x2
