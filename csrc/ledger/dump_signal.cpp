#include "ledger/dump_signal.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/error.h"

namespace q7x2 {
namespace {

// Never closed: a signal may arrive at any time, also while the last runtime goes.
std::atomic<int> event_fd{-1};
static_assert(std::atomic<int>::is_always_lock_free);

void on_signal(int) {
  const int saved = errno;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event_fd.load(), &one, sizeof(one));
  errno = saved;
}

bool has_handler(void (*handler)(int)) {
  struct sigaction present {};
  ::sigaction(SIGUSR2, nullptr, &present);
  return (present.sa_flags & SA_SIGINFO) == 0 && present.sa_handler == handler;
}

void set_handler(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGUSR2, &action, nullptr);
}

int make_event_fd() {
  const int fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) {
    throw Error(ErrorCode::kTransport, std::string("eventfd: ") + std::strerror(errno));
  }
  event_fd = fd;
  // The child shares the descriptor, and its parent would answer.
  ::pthread_atfork(nullptr, nullptr, [] {
    if (has_handler(on_signal)) set_handler(SIG_DFL);
  });
  return fd;
}

}  // namespace

int dump_signal_fd() {
  static const int fd = make_event_fd();
  if (has_handler(SIG_DFL)) set_handler(on_signal);
  return fd;
}

}  // namespace q7x2
