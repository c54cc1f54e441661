#include "transport/private_socket.h"

#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <mutex>
#include <new>
#include <set>
#include <utility>

namespace q7x2 {
namespace {

// A fork waits until nobody holds the mutex, so the child's copy of the set is whole. The mutex is
// held for one system call at most, and nothing else is locked meanwhile.
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

template <typename Open>
int opened(const Open& open) {
  heed_forks();
  const std::lock_guard<std::mutex> lock(mutex);
  const int fd = open();
  if (fd >= 0) {
    open_sockets.insert(fd);
  }
  return fd;
}

}  // namespace

PrivateSocket PrivateSocket::open() {
  return PrivateSocket(
      opened([] { return ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }));
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
  const std::lock_guard<std::mutex> lock(mutex);
  // A forked child has closed it already, and the number may be another file's.
  if (open_sockets.erase(fd_) > 0) {
    ::close(fd_);
  }
  fd_ = -1;
}

}  // namespace q7x2
