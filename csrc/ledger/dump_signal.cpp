#include "ledger/dump_signal.h"

#include <sys/eventfd.h>
#include <sys/types.h>
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

// One per process, never closed: a signal may arrive at any time, even while the last runtime ends.
std::atomic<int> event_fd{-1};
static_assert(std::atomic<int>::is_always_lock_free);

std::atomic<pid_t> owner{0};
static_assert(std::atomic<pid_t>::is_always_lock_free);

void on_signal(int) {
  if (::getpid() != owner.load()) {
    // A forked child shares the descriptor, and its parent would answer. The signal arrives again
    // when the handler returns.
    ::signal(SIGUSR2, SIG_DFL);
    ::raise(SIGUSR2);
    return;
  }
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
  return fd;
}

}  // namespace

int dump_signal_fd() {
  if (owner != ::getpid()) {
    event_fd = make_event_fd();
    owner = ::getpid();
  }
  if (has_handler(SIG_DFL)) set_handler(on_signal);
  return event_fd;
}

}  // namespace q7x2
