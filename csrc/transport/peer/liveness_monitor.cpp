#include "transport/peer/liveness_monitor.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/error.h"
#include "transport/net/silence_limit.h"

namespace q7x2 {

LivenessMonitor::LivenessMonitor(uint64_t process, const MessageKey& key,
                                 const std::vector<IpAddress>& addresses)
    : process_(process),
      limit_(silence_limit()),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      life_(process, key, addresses, SilenceClock::period(limit_)) {
  epoll_event event{};
  event.events = EPOLLIN;
  if (epoll_ < 0 || ::epoll_ctl(epoll_, EPOLL_CTL_ADD, life_.fd(), &event) != 0) {
    throw Error(ErrorCode::kTransport, std::string("epoll: ") + std::strerror(errno));
  }
}

bool LivenessMonitor::watch_process(int pid, uint64_t process, void* who) {
  auto watch = ProcessWatch::start(pid, process, epoll_);
  if (!watch) return false;
  processes_.insert_or_assign(who, std::move(watch));
  return true;
}

void LivenessMonitor::watch_host(const HeartbeatTarget& target, void* who, TimePoint now,
                                 bool believes_refusals) {
  if (target.endpoint.port == 0) return;
  std::unique_ptr<Heartbeat>& heartbeat = heartbeats_[who];
  if (!heartbeat) {
    heartbeat = std::make_unique<Heartbeat>(process_, target, limit_, epoll_, now);
    due_ = std::min(due_, now);
  }
  if (believes_refusals) heartbeat->believe_refusals();
}

void LivenessMonitor::call_port(const HeartbeatTarget& target, void* who, TimePoint now) {
  if (target.endpoint.port == 0) return;
  auto call = std::make_unique<PortCall>(process_, target, epoll_, now);
  due_ = std::min(due_, call->due());
  port_calls_.emplace_back(who, std::move(call));
}

bool LivenessMonitor::asks_for_admission() const {
  return std::ranges::any_of(port_calls_,
                             [](const auto& each) { return each.second->asks_for_admission(); });
}

void LivenessMonitor::forget(const void* who) {
  processes_.erase(who);
  heartbeats_.erase(who);
}

const Heartbeat* LivenessMonitor::heartbeat(const void* who) const {
  const auto found = heartbeats_.find(who);
  return found == heartbeats_.end() ? nullptr : found->second.get();
}

LivenessMonitor::TimePoint LivenessMonitor::due() const {
  return heartbeats_.empty() ? due_ : std::min(due_, next_round_);
}

template <typename Body>
void LivenessMonitor::for_each_watch(const Body& body) {
  for (const auto& [who, watch] : processes_) body(who, *watch);
  for (const auto& [who, watch] : heartbeats_) body(who, *watch);
  for (const auto& [who, call] : port_calls_) body(who, *call);
}

std::vector<Finding> LivenessMonitor::poll(TimePoint now) {
  std::vector<Finding> findings;
  const auto note = [&](const void* who, std::optional<Finding> finding) {
    if (!finding) return;
    finding->who = const_cast<void*>(who);
    findings.push_back(std::move(*finding));
  };
  std::array<epoll_event, 32> events;
  const int count = ::epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    // null: the LifeLine's descriptor
    const void* const ready = events[static_cast<size_t>(i)].data.ptr;
    for_each_watch([&](const void* who, LivenessWatch& watch) {
      if (&watch != ready) return;
      note(who, watch.ready(now));
      due_ = std::min(due_, watch.due());
    });
  }
  const bool is_round = now >= next_round_;
  if (is_round) next_round_ = now + SilenceClock::period(limit_);
  if (is_round || now >= due_) {
    due_ = TimePoint::max();
    for_each_watch([&](const void* who, LivenessWatch& watch) {
      if (is_round || now >= watch.due()) note(who, watch.tick(now));
      due_ = std::min(due_, watch.due());
    });
  }
  std::erase_if(port_calls_, [](const auto& each) { return each.second->is_over(); });
  return findings;
}

void LivenessMonitor::close() {
  heartbeats_.clear();
  processes_.clear();
  life_.close();
}

}  // namespace q7x2
