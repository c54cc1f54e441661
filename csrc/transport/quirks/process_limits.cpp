#include "transport/quirks/process_limits.h"

#include <fcntl.h>
#include <net/if.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/owned_fd.h"
#include "base/quiet_thread.h"

namespace q7x2 {
namespace {

// File descriptors for UCX (its thread's epoll set and timer, the sockets and segments of its
// transports), for q7x2 (three), for the first connections, and the spare ones without which UCX
// would not poll its port (tcp_gate.h).
constexpr size_t kDescriptors = 40;
// File descriptors per network interface: TCP's listening socket and its epoll set, the socket for
// heartbeats, and the one that the gate keeps.
constexpr size_t kDescriptorsPerInterface = 5;
// UCX's, q7x2's, and one that runs callbacks.
constexpr size_t kThreads = 3;
// The stacks of these threads, their malloc arenas, and UCX's pools.
constexpr size_t kAddressSpace = size_t{256} << 20;

size_t network_interfaces() {
  struct if_nameindex* const interfaces = ::if_nameindex();
  if (interfaces == nullptr) {
    return 1;
  }
  size_t count = 0;
  while (interfaces[count].if_index != 0) {
    ++count;
  }
  ::if_freenameindex(interfaces);
  return count;
}

void check_descriptors() {
  const size_t needed = kDescriptors + kDescriptorsPerInterface * network_interfaces();
  std::vector<OwnedFd> opened;
  while (opened.size() < needed) {
    OwnedFd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (fd < 0) {
      break;
    }
    opened.push_back(std::move(fd));
  }
  if (opened.size() < needed) {
    const int failure = errno;
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    throw Error(ErrorCode::kTransport,
                "q7x2 needs " + std::to_string(needed) +
                    " file descriptors to start, but this process can open only " +
                    std::to_string(opened.size()) + " more (" + std::strerror(failure) +
                    "; its limit is " + std::to_string(limit.rlim_cur) +
                    "): raise the limit (`ulimit -n`)");
  }
}

void check_threads() {
  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;
  std::vector<std::thread> threads;
  const auto join = [&] {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      over = true;
    }
    changed.notify_all();
    for (std::thread& thread : threads) {
      thread.join();
    }
  };
  threads.reserve(kThreads);
  try {
    // All at the same time, as later in use.
    while (threads.size() < kThreads) {
      threads.push_back(quiet_thread("q7x2-trial", [&] {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [&] { return over; });
      }));
    }
  } catch (...) {
    join();
    throw;
  }
  join();
}

void check_address_space() {
  void* const memory =
      ::mmap(nullptr, kAddressSpace, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error(ErrorCode::kTransport,
                "q7x2 needs " + std::to_string(kAddressSpace >> 20) +
                    " MiB of address space to start, and the operating system refuses them (" +
                    std::strerror(errno) + "): raise the limit (`ulimit -v`)");
  }
  ::munmap(memory, kAddressSpace);
}

}  // namespace

bool can_open_file() {
  return OwnedFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;
}

void check_process_limits() {
  check_descriptors();
  check_address_space();
  check_threads();
}

}  // namespace q7x2
