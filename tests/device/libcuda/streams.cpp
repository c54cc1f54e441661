#include "streams.h"

#include <algorithm>
#include <utility>

namespace fake_cuda {
namespace {

thread_local bool calls_host_function = false;

}  // namespace

bool in_host_function() {
  return calls_host_function;
}

void call_host_function(const std::function<void()>& function) {
  calls_host_function = true;
  function();
  calls_host_function = false;
}

Stream::Stream() : thread_([this] { run(); }) {}

Stream::~Stream() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Stream::enqueue(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
  }
  changed_.notify_all();
}

void Stream::synchronize() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return work_.empty() && !is_busy_; });
}

void Stream::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !work_.empty() || is_ending_; });
    if (work_.empty()) return;
    const std::function<void()> next = std::move(work_.front());
    work_.pop_front();
    is_busy_ = true;
    lock.unlock();
    next();
    lock.lock();
    is_busy_ = false;
    changed_.notify_all();
  }
}

void Event::record(Stream* stream) {
  const std::lock_guard lock(marks_->mutex);
  const uint64_t number = ++marks_->recorded;
  if (stream == nullptr) {
    marks_->reached = number;
    return;
  }
  stream->enqueue([marks = marks_, number] {
    const std::lock_guard inner(marks->mutex);
    marks->reached = std::max(marks->reached, number);
  });
}

bool Event::is_complete() const {
  const std::lock_guard lock(marks_->mutex);
  return marks_->reached == marks_->recorded;
}

}  // namespace fake_cuda
