#include "transport/peer/process_watch.h"

#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include "base/error.h"

namespace q7x2 {

bool is_stopped(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  // "41 (name) T ...", and the name may have parentheses of its own.
  const size_t end = line.rfind(") ");
  const char state = end == std::string::npos || end + 2 >= line.size() ? '?' : line[end + 2];
  return state == 'T' || state == 't';
}

ProcessWatch::ProcessWatch() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (epoll_ < 0) {
    throw Error(ErrorCode::kTransport, std::string("epoll_create1: ") + std::strerror(errno));
  }
}

std::optional<OwnedFd> ProcessWatch::watch(int pid, void* who) const {
  OwnedFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (pidfd >= 0) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = who;
    ::epoll_ctl(epoll_, EPOLL_CTL_ADD, pidfd, &event);
  } else if (errno == ESRCH) {
    return std::nullopt;
  }
  return pidfd;
}

void ProcessWatch::forget(OwnedFd& pidfd) const {
  if (pidfd >= 0) {
    // Closing it would not suffice: a forked child has a copy.
    ::epoll_ctl(epoll_, EPOLL_CTL_DEL, pidfd, nullptr);
    pidfd = OwnedFd();
  }
}

std::vector<void*> ProcessWatch::ended() const {
  std::array<epoll_event, 16> events;
  const int count = ::epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), 0);
  std::vector<void*> who;
  for (int i = 0; i < count; ++i) {
    who.push_back(events[static_cast<size_t>(i)].data.ptr);
  }
  return who;
}

}  // namespace q7x2
