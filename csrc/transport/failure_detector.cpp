#include "transport/failure_detector.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace q7x2 {
namespace {

constexpr std::chrono::milliseconds kDefaultLimit{2000};
constexpr double kShortest = 0.1;
// As good as for ever, and far from the ends of the clock.
constexpr double kLongest = 365.0 * 24 * 3600;

}  // namespace

std::chrono::milliseconds silence_limit() {
  const char* const text = std::getenv("Q7X2_SILENCE");
  if (text == nullptr || *text == '\0') {
    return kDefaultLimit;
  }
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (end == text || *end != '\0' || !std::isfinite(seconds) ||
      (seconds != 0 && seconds < kShortest)) {
    throw Error(ErrorCode::kInvalidArgument,
                "Q7X2_SILENCE=" + std::string(text) +
                    ": expected for how many seconds a host may not answer, from 0.1 on, or 0 for "
                    "any time");
  }
  const double limit = seconds == 0 ? kLongest : std::min(seconds, kLongest);
  return std::chrono::milliseconds(std::llround(limit * 1000));
}

FailureDetector::FailureDetector(uint64_t process, const MessageKey& key)
    : process_(process),
      limit_(silence_limit()),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      listener_(process, key) {
  if (epoll_ < 0) {
    throw Error(ErrorCode::kTransport, std::string("epoll_create1: ") + std::strerror(errno));
  }
  add(processes_.fd(), &processes_);
  add(listener_.fd(), &listener_);
}

void FailureDetector::add(int fd, const void* data) const {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = const_cast<void*>(data);
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) {
    throw Error(ErrorCode::kTransport, std::string("epoll_ctl: ") + std::strerror(errno));
  }
}

bool FailureDetector::watch_process(int pid, void* who) {
  auto pidfd = processes_.watch(pid, who);
  if (!pidfd) {
    return false;
  }
  pidfds_.insert_or_assign(who, std::move(*pidfd));
  return true;
}

void FailureDetector::watch_host(const Heartbeat::Target& target, void* who, TimePoint now,
                                 bool believes_refusals) {
  if (target.port == 0) {
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

void FailureDetector::bid_farewell(const Heartbeat::Target& target, void* who) {
  if (target.port != 0) {
    farewells_.emplace_back(who, std::make_unique<Farewell>(process_, target, epoll_));
  }
}

void FailureDetector::forget(const void* who) {
  if (const auto found = pidfds_.find(who); found != pidfds_.end()) {
    processes_.forget(found->second);
    pidfds_.erase(found);
  }
  heartbeats_.erase(who);
}

FailureDetector::TimePoint FailureDetector::due() const {
  return heartbeats_.empty() && listener_.is_idle() ? TimePoint::max() : due_;
}

bool FailureDetector::answers(const void* who, TimePoint now) const {
  const auto found = heartbeats_.find(who);
  return found != heartbeats_.end() && found->second->answers(now);
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
    if (data == &listener_) {
      listener_.look(now);
    } else if (data == &processes_) {
      for (void* who : processes_.ended()) {
        processes_.forget(pidfds_[who]);
        notices.push_back({who, Evidence::kProcessEnded, "its process has ended", true});
      }
    } else {
      const auto found = std::find_if(heartbeats_.begin(), heartbeats_.end(),
                                      [&](const auto& each) { return each.second.get() == data; });
      if (found != heartbeats_.end()) {
        note(found->first, *found->second, found->second->ready(now));
      }
      for (const auto& [who, farewell] : farewells_) {
        if (farewell.get() != data) continue;
        if (auto finding = farewell->ready()) {
          notices.push_back({who, finding->evidence, std::move(finding->reason)});
        }
      }
    }
  }
  std::erase_if(farewells_, [](const auto& each) { return each.second->is_over(); });
  const bool is_round = now >= next_round_;
  if (is_round) {
    next_round_ = now + SilenceClock::period(limit_);
    listener_.tidy(now);
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

void FailureDetector::close() {
  heartbeats_.clear();
  listener_.close(HeartbeatEnd::kLeft);
}

}  // namespace q7x2
