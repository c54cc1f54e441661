#include "transport/net/private_socket.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <set>
#include <utility>
#include <vector>

namespace q7x2 {
namespace {

// A fork waits until no thread holds the mutex, so the child's copy of the set is consistent. The
// mutex is held for one system call at most, and no other lock is taken meanwhile.
std::mutex mutex;
// Never destroyed: threads may use it while the process ends.
std::set<int>& open_sockets = *new std::set<int>;

void before_fork() {
  mutex.lock();
}

void in_parent() {
  mutex.unlock();
}

void in_child() {
  for (const int fd : open_sockets) {
    ::close(fd);
  }
  open_sockets.clear();
  new (&mutex) std::mutex;
}

void heed_forks() {
  // If there is no memory for the handlers, a child keeps its copies.
  [[maybe_unused]] static const int registered = ::pthread_atfork(before_fork, in_parent, in_child);
}

thread_local bool has_own_files = false;

template <typename Open>
int opened(const Open& open) {
  if (has_own_files) return open();
  heed_forks();
  const std::lock_guard<std::mutex> lock(mutex);
  const int fd = open();
  if (fd >= 0) {
    open_sockets.insert(fd);
  }
  return fd;
}

}  // namespace

bool own_files(std::initializer_list<int> kept) {
  std::vector<int> files(kept);
  files.push_back(STDERR_FILENO);
  std::sort(files.begin(), files.end());
  unsigned from = 0;
  unsigned how = CLOSE_RANGE_UNSHARE;
  for (size_t i = 0; i <= files.size(); ++i) {
    const unsigned end = i < files.size() ? static_cast<unsigned>(files[i]) : ~0U;
    // By number, because the C library has no function for it before 2.34.
    if (from < end &&
        ::syscall(SYS_close_range, from, end - (i < files.size() ? 1 : 0), how) != 0) {
      return false;  // if one fails, it is the first
    }
    if (from < end) how = 0;
    from = end + 1;
  }
  // Sockets must not have the numbers of the standard streams.
  while (true) {
    const int fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    if (fd > STDOUT_FILENO) ::close(fd);
    if (fd < 0 || fd > STDOUT_FILENO) break;
  }
  return has_own_files = true;
}

PrivateSocket PrivateSocket::open(int family) {
  return PrivateSocket(
      opened([&] { return ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }));
}

PrivateSocket PrivateSocket::accept() const {
  return PrivateSocket(
      opened([&] { return ::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); }));
}

PrivateSocket& PrivateSocket::operator=(PrivateSocket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

void PrivateSocket::close() {
  if (fd_ < 0) {
    return;
  }
  if (has_own_files) {
    ::close(std::exchange(fd_, -1));
    return;
  }
  const std::lock_guard<std::mutex> lock(mutex);
  // A forked child has closed it already, and its number may now belong to another file.
  if (open_sockets.erase(fd_) > 0) {
    ::close(fd_);
  }
  fd_ = -1;
}

}  // namespace q7x2
