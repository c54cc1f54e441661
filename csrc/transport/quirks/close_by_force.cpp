#include "transport/quirks/close_by_force.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "transport/quirks/tcp_sockets.h"

namespace q7x2 {
namespace {

// The kernel always reports these events.
constexpr uint32_t kAlways = EPOLLERR | EPOLLHUP;

bool is_watched(int epoll, int fd) {
  for (const Watched& each : watched_by(epoll)) {
    if (each.fd == fd) return (each.watch.events & ~kAlways) != 0;
  }
  return false;
}

void watch(int epoll, int fd, epoll_event how) {
  epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &how);
}

ino_t inode_of(int socket) {
  struct stat status {};
  return fstat(socket, &status) == 0 ? status.st_ino : 0;
}

/// Reads with a system call, because the kernel refuses an invalid address. Returns false if it
/// cannot be read.
template <typename Record>
bool read_at(void* address, Record& record) {
  const iovec from{address, record.size()};
  const iovec to{record.data(), record.size()};
  return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == static_cast<ssize_t>(record.size());
}

/// Bytes that have arrived and were not read are lost.
void shut_down(int socket) {
  shutdown(socket, SHUT_RDWR);
  std::array<char, 4096> bytes;
  while (recv(socket, bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
  }
}

}  // namespace

bool CloseByForce::has_lost_a_bit(const Record& before, const Record& now) {
  return !std::equal(before.begin(), before.end(), now.begin(),
                     [](unsigned char was, unsigned char is) { return (was & ~is) == 0; });
}

CloseByForce::CloseByForce(int worker) {
  for (const Watched& interface : watched_by(worker)) {
    for (const Watched& each : watched_by(interface.fd)) {
      Socket socket{interface.fd, each.fd, each.watch, inode_of(each.fd), {}};
      if ((each.watch.events & EPOLLOUT) == 0 || !is_tcp(each.fd) ||
          !read_at(each.watch.data.ptr, socket.record)) {
        continue;
      }
      try {
        sockets_.push_back(socket);
      } catch (const std::bad_alloc&) {
        return;
      }
      watch(interface.fd, each.fd, {.events = 0, .data = each.watch.data});
    }
  }
}

CloseByForce::~CloseByForce() {
  for (const Socket& each : sockets_) {
    if (inode_of(each.socket) != each.inode) {
      continue;  // UCX has closed it
    }
    Record record{};
    if (read_at(each.watch.data.ptr, record) && has_lost_a_bit(each.record, record)) {
      shut_down(each.socket);
    }
    if (!is_watched(each.epoll, each.socket)) {
      watch(each.epoll, each.socket, each.watch);
    }
  }
}

}  // namespace q7x2
