#include "transport/stream/event_loop.h"

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

#include "base/error.h"

namespace q7x2 {
namespace {

constexpr size_t kAtOnce = 64;

}  // namespace

EventLoop::EventLoop() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (epoll_ < 0) {
    throw Error(ErrorCode::kTransport, std::string("epoll_create1: ") + std::strerror(errno));
  }
}

uint64_t EventLoop::add(int fd, uint32_t events, EventHandler& handler) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = next_;
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) return 0;
  handlers_.emplace(next_, &handler);
  return next_++;
}

void EventLoop::change(uint64_t entry, int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = entry;
  ::epoll_ctl(epoll_, EPOLL_CTL_MOD, fd, &event);
}

void EventLoop::remove(uint64_t entry, int fd) {
  handlers_.erase(entry);
  ::epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
}

bool EventLoop::dispatch() {
  std::array<epoll_event, kAtOnce> events;
  const int count = ::epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<size_t>(i)];
    const auto found = handlers_.find(event.data.u64);
    if (found != handlers_.end()) found->second->on_ready(event.events);
  }
  return count > 0;
}

bool EventEntry::add(EventLoop& loop, int fd, uint32_t events, EventHandler& handler) {
  remove();
  entry_ = loop.add(fd, events, handler);
  if (entry_ == 0) return false;
  loop_ = &loop;
  fd_ = fd;
  events_ = events;
  return true;
}

void EventEntry::set(uint32_t events) {
  if (events == events_ || loop_ == nullptr) return;
  events_ = events;
  loop_->change(entry_, fd_, events);
}

void EventEntry::remove() {
  if (loop_ != nullptr) loop_->remove(entry_, fd_);
  loop_ = nullptr;
}

}  // namespace q7x2
