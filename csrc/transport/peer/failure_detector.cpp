#include "transport/peer/failure_detector.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "transport/net/silence_limit.h"

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

FailureDetector::FailureDetector(uint64_t process, const MessageKey& key,
                                 const std::vector<IpAddress>& addresses)
    : process_(process),
      limit_(silence_limit()),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      life_(process, key, addresses, SilenceClock::period(limit_)) {
  if (epoll_ < 0) {
    throw Error(ErrorCode::kTransport, std::string("epoll_create1: ") + std::strerror(errno));
  }
  add(processes_.fd(), &processes_);
  add(life_.fd(), &life_);
}

void FailureDetector::add(int fd, const void* data) const {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = const_cast<void*>(data);
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) {
    throw Error(ErrorCode::kTransport, std::string("epoll_ctl: ") + std::strerror(errno));
  }
}

bool FailureDetector::watch_process(int pid, uint64_t process, void* who) {
  auto pidfd = processes_.watch(pid, who);
  if (!pidfd) {
    return false;
  }
  pidfds_.insert_or_assign(who, std::move(*pidfd));
  PrivateSocket socket = connect_to_life_line(process);
  if (socket.is_valid() && listener_of(socket) == pid) {
    Line& line = lines_.insert_or_assign(who, Line{pid, std::move(socket)}).first->second;
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = &line;
    if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, line.socket, &event) != 0) lines_.erase(who);
  }
  return true;
}

void FailureDetector::watch_host(const Heartbeat::Target& target, void* who, TimePoint now,
                                 bool believes_refusals) {
  if (target.endpoint.port == 0) {
    return;
  }
  std::unique_ptr<Heartbeat>& heartbeat = heartbeats_[who];
  if (!heartbeat) {
    heartbeat = std::make_unique<Heartbeat>(process_, target, limit_, epoll_, now);
    due_ = std::min(due_, now);
  }
  if (believes_refusals) {
    heartbeat->believe_refusals();
  }
}

void FailureDetector::send_break_notice(const Heartbeat::Target& target, void* who) {
  if (target.endpoint.port != 0) {
    break_notices_.emplace_back(who, std::make_unique<BreakNotice>(process_, target, epoll_));
  }
}

void FailureDetector::forget(const void* who) {
  if (const auto found = pidfds_.find(who); found != pidfds_.end()) {
    processes_.forget(found->second);
    pidfds_.erase(found);
  }
  lines_.erase(who);
  heartbeats_.erase(who);
}

FailureDetector::TimePoint FailureDetector::due() const {
  return std::min(verdict_due_, heartbeats_.empty() ? TimePoint::max() : due_);
}

bool FailureDetector::answers(const void* who, TimePoint now) const {
  const auto found = heartbeats_.find(who);
  return found != heartbeats_.end() && found->second->answers(now);
}

bool FailureDetector::answers_now(const void* who, TimePoint now) const {
  const auto found = heartbeats_.find(who);
  return found != heartbeats_.end() && found->second->answers_now(now);
}

bool FailureDetector::is_out_of_reach(const void* who, TimePoint now) const {
  const auto found = heartbeats_.find(who);
  return found != heartbeats_.end() && found->second->is_out_of_reach(now);
}

std::vector<FailureDetector::Notice> FailureDetector::look(TimePoint now) {
  std::vector<Notice> notices;
  const auto note = [&](const void* who, const Heartbeat& heartbeat,
                        std::optional<Heartbeat::Finding> finding) {
    if (finding) {
      notices.push_back({const_cast<void*>(who), finding->evidence, std::move(finding->reason),
                         heartbeat.has_reached()});
    }
    due_ = std::min(due_, heartbeat.due());
  };
  std::array<epoll_event, 32> events;
  const int count = ::epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    void* const data = events[static_cast<size_t>(i)].data.ptr;
    if (data == &life_) {
      continue;  // its notices are asked for
    } else if (data == &processes_) {
      for (void* who : processes_.ended()) {
        processes_.forget(pidfds_[who]);
        lines_.erase(who);
        notices.push_back({who, Evidence::kProcessEnded, "its process has ended", true});
      }
    } else {
      const auto found = std::find_if(heartbeats_.begin(), heartbeats_.end(),
                                      [&](const auto& each) { return each.second.get() == data; });
      if (found != heartbeats_.end()) {
        note(found->first, *found->second, found->second->ready(now));
      }
      for (auto& [who, line] : lines_) {
        if (&line != data) continue;
        // Closing it would not suffice: a forked child may have a copy.
        ::epoll_ctl(epoll_, EPOLL_CTL_DEL, line.socket, nullptr);
        read(line, now);
      }
      for (const auto& [who, notice] : break_notices_) {
        if (notice.get() != data) continue;
        if (auto finding = notice->ready()) {
          notices.push_back({who, finding->evidence, std::move(finding->reason)});
        }
      }
    }
  }
  std::erase_if(break_notices_, [](const auto& each) { return each.second->is_over(); });
  judge_lines(now, notices);
  const bool is_round = now >= next_round_;
  if (is_round) {
    next_round_ = now + SilenceClock::period(limit_);
  }
  if (is_round || now >= due_) {
    due_ = next_round_;
    for (auto& [who, heartbeat] : heartbeats_) {
      if (is_round || heartbeat->due() <= now) {
        note(who, *heartbeat, heartbeat->look(now));
      } else {
        due_ = std::min(due_, heartbeat->due());
      }
    }
  }
  return notices;
}

void FailureDetector::read(Line& line, TimePoint now) {
  char byte = 0;
  const ssize_t count = ::recv(line.socket, &byte, 1, 0);
  line.socket.close();
  const bool has_left = count == 1 && byte == LifeLine::kLeft;
  if (!has_left) line.verdict = now + kUntilVerdict;
}

// A pidfd tells that a process has ended. It may do so a moment after the line has; and never if
// the process has become another program.
void FailureDetector::judge_lines(TimePoint now, std::vector<Notice>& notices) {
  verdict_due_ = TimePoint::max();
  std::erase_if(lines_, [&](auto& each) {
    auto& [who, line] = each;
    if (line.socket.is_valid()) return false;
    if (line.verdict == TimePoint::max()) return true;
    if (now < line.verdict) {
      verdict_due_ = std::min(verdict_due_, line.verdict);
      return false;
    }
    std::array<char, 1> name;
    const bool is_alive =
        ::readlink(("/proc/" + std::to_string(line.pid) + "/exe").c_str(), name.data(), 1) > 0;
    notices.push_back(
        {const_cast<void*>(who), Evidence::kProcessEnded,
         is_alive ? "its process has become another program (exec)" : "its process has ended",
         true});
    return true;
  });
}

void FailureDetector::close() {
  heartbeats_.clear();
  lines_.clear();
  life_.close(HeartbeatHello::Turn::kLeft);
}

}  // namespace q7x2
