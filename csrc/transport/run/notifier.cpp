#include "transport/run/notifier.h"

#include <utility>

#include "base/quiet_thread.h"

namespace q7x2 {
namespace {

thread_local const Notifier* current =
    nullptr;  // the notifier that owns the calling thread; null: none

}  // namespace

Notifier::~Notifier() {
  stop();
}

void Notifier::start() {
  const std::lock_guard<std::mutex> lock(mutex_);
  add_thread();
}

bool Notifier::post(std::function<void()>&& callback) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stopped_) return false;
    if (idle_ == 0) add_thread();
    callbacks_.push_back(std::move(callback));
  }
  changed_.notify_one();
  return true;
}

void Notifier::stop() {
  std::vector<std::thread> threads;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
    // Threads may still be added while the last callbacks wait for one another.
    changed_.wait(lock, [this] { return callbacks_.empty(); });
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) thread.join();
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_ -= threads.size();
}

bool Notifier::stop(Clock::time_point deadline) {
  std::deque<std::function<void()>> dropped;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
    if (!changed_.wait_until(lock, deadline, [this] { return rests(); })) {
      dropped.swap(callbacks_);
      for (std::thread& thread : threads_) thread.detach();
      threads_.clear();
      return false;
    }
  }
  stop();
  return true;
}

bool Notifier::is_busy() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !rests();
}

bool Notifier::is_current_thread() const {
  return current == this;
}

void Notifier::add_thread() {
  if (threads_.size() == kMaxThreads) return;
  threads_.reserve(kMaxThreads);  // so that push_back cannot throw once the thread has started
  try {
    threads_.push_back(quiet_thread("q7x2-notify", [this] { run(); }));
  } catch (const Error&) {
    if (threads_.empty()) throw;
    return;  // the existing threads take turns
  }
  ++idle_;
}

void Notifier::run() {
  current = this;
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopped_ || !callbacks_.empty(); });
    if (callbacks_.empty()) return;
    if (const uint64_t other = running_; other != 0) {
      // The other callback may return in time. If it does not, this thread takes the next one.
      const bool is_over =
          changed_.wait_until(lock, running_since_ + patience_, [&] { return running_ != other; });
      if (is_over || callbacks_.empty()) continue;
    }
    std::function<void()> callback = std::move(callbacks_.front());
    callbacks_.pop_front();
    const uint64_t mine = running_ = ++started_;
    running_since_ = Clock::now();
    --idle_;
    if (!callbacks_.empty()) {
      // `post` may have woken a thread that was already waiting for this turn.
      idle_ == 0 ? add_thread() : changed_.notify_one();
    }
    lock.unlock();
    callback();
    callback = nullptr;  // destroying what it captures may run the host program's code
    lock.lock();
    ++idle_;
    if (running_ == mine) running_ = 0;
    if (stopped_ && callbacks_.empty()) changed_.notify_all();
  }
}

}  // namespace q7x2
