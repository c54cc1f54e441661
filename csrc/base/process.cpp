#include "base/process.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/host_lock.h"

namespace q7x2 {
namespace {

// Counts the forks between the first process and this one; faster than calling getpid().
std::atomic<uint32_t> forks{0};

std::atomic<bool> ending{false};
std::atomic<bool (*)()> holds_host_lock{nullptr};
thread_local bool ends_process = false;

void count_fork() {
  forks.fetch_add(1, std::memory_order_relaxed);
  ending.store(false, std::memory_order_relaxed);  // the child does not end with its parent
}

uint32_t count_forks() {
  static const int registered = pthread_atfork(nullptr, nullptr, count_fork);
  if (registered != 0) {
    throw Error(ErrorCode::kTransport, std::string("pthread_atfork: ") + std::strerror(registered));
  }
  return forks.load(std::memory_order_relaxed);
}

}  // namespace

ForkGuard::ForkGuard() : forks_(count_forks()) {}

bool ForkGuard::is_elsewhere() const {
  return forks.load(std::memory_order_relaxed) != forks_;
}

void ForkGuard::require(const char* what) const {
  if (is_elsewhere()) {
    throw Error(ErrorCode::kAborted, std::string(what) +
                                         " cannot be used in a forked child; only the process that "
                                         "made it can use it");
  }
}

void begin_ending() {
  ends_process = true;
  ending.store(true, std::memory_order_release);
}

bool is_ending() {
  return ending.load(std::memory_order_acquire);
}

void block_at_exit() {
  if (!is_ending() || ends_process) {
    return;
  }
  if (const auto is_held = holds_host_lock.load(); is_held != nullptr && is_held()) {
    return;
  }
  for (;;) {
    ::pause();
  }
}

void set_host_lock(bool (*is_held)()) {
  holds_host_lock = is_held;
}

}  // namespace q7x2
