#include "transport/peer/process_watch.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <string>
#include <utility>

#include "transport/peer/life_line.h"

namespace q7x2 {
namespace {

constexpr std::chrono::milliseconds kUntilVerdict{20};

/// The process that listens at the other end; -1: unknown.
int listener_of(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? peer.pid : -1;
}

}  // namespace

bool is_stopped(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  // "41 (name) T ...": the name may contain parentheses itself.
  const size_t end = line.rfind(") ");
  const char state = end == std::string::npos || end + 2 >= line.size() ? '?' : line[end + 2];
  return state == 'T' || state == 't';
}

ProcessWatch::ProcessWatch(int pid, OwnedFd pidfd, PrivateSocket line, int epoll)
    : pid_(pid), epoll_(epoll), pidfd_(std::move(pidfd)), line_(std::move(line)) {
  watch(pidfd_);
  watch(line_);
}

std::unique_ptr<ProcessWatch> ProcessWatch::start(int pid, uint64_t process, int epoll) {
  OwnedFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (pidfd < 0 && errno == ESRCH) return nullptr;
  PrivateSocket line = connect_to_life_line(process);
  if (line.is_valid() && listener_of(line) != pid) line.close();
  return std::unique_ptr<ProcessWatch>(
      new ProcessWatch(pid, std::move(pidfd), std::move(line), epoll));
}

void ProcessWatch::watch(int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = this;
  if (fd >= 0) ::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
}

// Closing the descriptor is not enough: a forked child may have a copy.
void ProcessWatch::end_line() {
  if (line_.is_valid()) ::epoll_ctl(epoll_, EPOLL_CTL_DEL, line_, nullptr);
  line_.close();
}

void ProcessWatch::stop() {
  if (pidfd_ >= 0) ::epoll_ctl(epoll_, EPOLL_CTL_DEL, pidfd_, nullptr);
  pidfd_ = OwnedFd();
  end_line();
  verdict_ = TimePoint::max();
}

std::optional<Finding> ProcessWatch::ready(TimePoint now) {
  pollfd process{pidfd_, POLLIN, 0};
  if (pidfd_ >= 0 && ::poll(&process, 1, 0) == 1) {
    stop();
    return Finding{Evidence::kProcessEnded, "its process has ended", true};
  }
  char byte = 0;
  const ssize_t count = line_.is_valid() ? ::recv(line_, &byte, 1, 0) : -1;
  if (!line_.is_valid() || (count < 0 && (errno == EAGAIN || errno == EINTR))) return std::nullopt;
  end_line();
  const bool has_left = count == 1 && byte == LifeLine::kLeft;
  if (!has_left) verdict_ = now + kUntilVerdict;
  return std::nullopt;
}

std::optional<Finding> ProcessWatch::tick(TimePoint now) {
  if (now < verdict_) return std::nullopt;
  verdict_ = TimePoint::max();
  std::array<char, 1> name;
  const bool is_alive =
      ::readlink(("/proc/" + std::to_string(pid_) + "/exe").c_str(), name.data(), 1) > 0;
  return Finding{
      Evidence::kProcessEnded,
      is_alive ? "its process has become another program (exec)" : "its process has ended", true};
}

}  // namespace q7x2
