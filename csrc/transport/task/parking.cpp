#include "transport/task/parking.h"

#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"

namespace q7x2 {
namespace {

// The longest sleep of a waiter without an eventfd, because the process can open no more files.
constexpr std::chrono::milliseconds kNapWithoutSpot{5};

}  // namespace

WakeFd::WakeFd() : fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (fd_ < 0) {
    throw Error(ErrorCode::kTransport, std::string("eventfd: ") + std::strerror(errno));
  }
}

void WakeFd::signal() const {
  const uint64_t one = 1;
  // If the counter is full, the descriptor is readable already.
  [[maybe_unused]] const ssize_t written = ::write(fd_, &one, sizeof(one));
}

void WakeFd::clear() const {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(fd_, &count, sizeof(count));
}

// One spot exists from the start, so that a single waiter always has one.
Parking::Parking(const std::atomic<size_t>& unfinished) : unfinished_(unfinished) {
  return_spot(new_spot());
}

WaitPolicy Parking::policy(TimePoint now, bool by_network) const {
  return {now, by_network, is_crowded(), now < wanted_until_.load(std::memory_order_relaxed)};
}

Parking::Waiter::Waiter(Parking& parking) : parking_(parking) {
  ++parking_.waiters_;
}

Parking::Waiter::~Waiter() {
  withdraw();
  if (spot_) {
    parking_.return_spot(std::move(spot_));
  }
  if (--parking_.waiters_ > 0) {
    parking_.wake_waiters();
  } else if (parking_.unfinished_ > 0) {
    parking_.wake_driver();
  }
}

void Parking::Waiter::announce() {
  if (!spot_) {
    spot_ = parking_.take_spot();
  }
  if (spot_ && !is_announced_) {
    const std::lock_guard<std::mutex> lock(parking_.mutex_);
    parking_.sleeping_.push_back(spot_.get());
    ++parking_.num_sleeping_;
    is_announced_ = true;
  }
}

void Parking::Waiter::withdraw() {
  if (is_announced_) {
    const std::lock_guard<std::mutex> lock(parking_.mutex_);
    std::erase(parking_.sleeping_, spot_.get());
    --parking_.num_sleeping_;
    is_announced_ = false;
  }
}

bool Parking::Waiter::sleep(std::vector<pollfd> events, std::chrono::milliseconds timeout) {
  if (!spot_) {
    timeout = std::min(timeout, kNapWithoutSpot);
    ::poll(events.data(), events.size(), static_cast<int>(timeout.count()));
    return false;
  }
  events.push_back({*spot_, POLLIN, 0});
  ::poll(events.data(), events.size(), static_cast<int>(timeout.count()));
  withdraw();
  const bool is_woken = events.back().revents != 0;
  if (is_woken) {
    spot_->clear();
  }
  return is_woken;
}

void Parking::Waiter::yield(WaitPolicy& policy, TimePoint now) {
  ::sched_yield();
  if (policy.is_by_network() && policy.yielded(now, std::chrono::steady_clock::now())) {
    parking_.wanted_until_.store(now + WaitPolicy::kStaysWanted, std::memory_order_relaxed);
  }
}

std::unique_ptr<WakeFd> Parking::take_spot() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!free_spots_.empty()) {
    std::unique_ptr<WakeFd> spot = std::move(free_spots_.back());
    free_spots_.pop_back();
    return spot;
  }
  try {
    return new_spot();
  } catch (const Error&) {
    return nullptr;
  }
}

std::unique_ptr<WakeFd> Parking::new_spot() {
  auto spot = std::make_unique<WakeFd>();
  sleeping_.reserve(num_spots_ + 1);
  free_spots_.reserve(num_spots_ + 1);
  ++num_spots_;
  return spot;
}

void Parking::return_spot(std::unique_ptr<WakeFd> spot) {
  const std::lock_guard<std::mutex> lock(mutex_);
  free_spots_.push_back(std::move(spot));
}

void Parking::wake_waiters() {
  if (num_sleeping_ == 0) {
    return;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const WakeFd* spot : sleeping_) {
    spot->signal();
  }
}

void Parking::driver_is_up() {
  driver_sleeps_ = false;
  driver_.clear();
}

void Parking::wake_driver() {
  if (driver_sleeps_) {
    driver_.signal();
  }
}

}  // namespace q7x2
