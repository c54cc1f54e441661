#include "transport/run/driver.h"

#include <sched.h>

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "base/process.h"
#include "base/quiet_thread.h"
#include "transport/group/group.h"

namespace q7x2 {
namespace {

using std::chrono::milliseconds;

// The last messages of a dead peer may still be on their way: how often to read for them.
constexpr int kLastLooks = 10000;
constexpr milliseconds kHousekeepingPeriod{5};
// How often a sleeping thread wakes up to check for interrupts and deadlines.
constexpr milliseconds kNap{50};
// While other threads drive, how often the driver's thread checks whether it is needed.
constexpr milliseconds kStandBy{10};
constexpr milliseconds kUntilAnEvent{-1};
// UCX cannot be armed while a message is half written. Longer than a living writer takes; and how
// long threads sleep between checks after that.
constexpr milliseconds kHalfWritten{5};
constexpr milliseconds kNapHalfWritten{1};
// Twice as long as a waiting thread may sleep.
constexpr milliseconds kOverdue{100};

milliseconds nap_until(TimePoint end, TimePoint now, milliseconds at_most) {
  if (end == TimePoint::max()) return at_most;
  const auto left = std::max(std::chrono::ceil<milliseconds>(end - now), milliseconds::zero());
  return at_most < milliseconds::zero() ? left : std::min(left, at_most);
}

}  // namespace

bool Driver::progress(Locked& locked) {
  bool any = reactor_.progress(locked);
  any |= completions_.deliver(locked);
  tasks_.drain(locked);
  any |= groups_.progress_sharing(locked);
  if (groups_.deliver(locked)) {
    tasks_.drain(locked);
  }
  any |= bootstraps_.deliver(locked);
  if (any) busy_since_ = TimePoint::max();
  return any;
}

void Driver::drive(Locked& locked) {
  progress(locked);
  housekeep(locked, Clock::now());
}

// It is unknown which operation was interrupted, and which group it belonged to. So every group
// fails.
void Driver::fail(Locked& locked, const std::exception& exception) noexcept {
  failure_ = std::current_exception();
  try {
    groups_.fail_all(locked, exception);
    tasks_.drain(locked);
    failure_ = nullptr;
  } catch (const std::exception&) {
    is_hasty_ = true;  // try again at the next housekeeping
  }
}

void Driver::housekeep(Locked& locked, TimePoint now) {
  if (now < next_housekeeping_.load() && !is_hasty_) {
    return;
  }
  is_hasty_ = false;
  next_housekeeping_ = now + kHousekeepingPeriod;
  if (failure_) std::rethrow_exception(failure_);
  peers_.poll(locked, now);
  peers_.declare_dead(locked, now, [&] {
    // On a busy machine this thread may not have run since the peer died: read what has arrived.
    for (int i = 0; i < kLastLooks && progress(locked); ++i) {
    }
  });
  if (queue_.look(locked, now)) {
    groups_.lose_host(locked, queue_.error());
    peers_.lose_host(locked);
  }
  groups_.housekeep(locked, now);
  tasks_.expire_late(locked, now);
  tasks_.drain(locked);
  if (peers_.has_suspects()) {
    next_housekeeping_ = std::min(now + kHousekeepingPeriod, peers_.death_due(locked));
  }
}

milliseconds Driver::nap(Locked& locked, TimePoint now, milliseconds at_most) const {
  TimePoint end = std::min({peers_.poll_due(locked), peers_.death_due(locked), queue_.due(locked),
                            reactor_.due(locked)});
  for (const auto& task : tasks_.active(locked)) {
    if (task->done()) continue;
    if (task->is_over(locked)) return kHousekeepingPeriod;
    const Task::Record& record = task->record(locked);
    end =
        std::min({end, record.deadline, std::max(record.next_inquiry, now + kHousekeepingPeriod)});
  }
  return nap_until(end, now, at_most);
}

bool Driver::is_overdue() const {
  return Clock::now() > next_housekeeping_.load() + kOverdue;
}

// -------------------------------------------------------------------------------------- waiting

template <typename Satisfied>
inline std::optional<Driver::Sleep> Driver::look(Locked& locked, WaitPolicy& policy,
                                                 Parking::Waiter& waiter,
                                                 const Satisfied& satisfied, TimePoint& now) {
  std::optional<Sleep> sleep;
  try {
    groups_.set_asleep(locked, false);
    bool any = false;
    for (int i = 0; i < policy.progress_per_look() && !satisfied(); ++i) {
      any |= progress(locked);
      if (!jobs_.is_empty()) break;
    }
    now = Clock::now();
    housekeep(locked, now);
    if (any) {
      policy.saw_event(now);
    } else if (!satisfied() && jobs_.is_empty() && policy.sleeps(now)) {
      sleep = prepare_sleep(locked, now, kNap);
    }
    if (sleep) {
      waiter.announce();
      if (!completions_.is_empty()) sleep->duration = milliseconds::zero();
    }
  } catch (const std::exception& exception) {
    fail(locked, exception);
  }
  return sleep;
}

bool Driver::wait(const Task& task, TimePoint deadline, size_t bytes,
                  const std::function<void()>& interrupt) {
  const auto satisfied = [&] { return task.done() || task.ready_bytes() >= bytes; };
  if (satisfied()) {
    return true;
  }
  parking_.note_activity();
  Parking::Waiter waiter(parking_);
  const Group::Waiting waiting(task.group());
  TimePoint now = Clock::now();
  // A message in shared memory wakes no thread by itself.
  WaitPolicy policy =
      parking_.policy(now, /*by_network=*/task.group().messages().channel() == nullptr);
  TimePoint next_interrupt_check = now + kNap;
  while (!satisfied()) {
    block_at_exit();
    if (jobs_.run_of(task.group())) {
      now = Clock::now();
      policy.saw_event(now);
      continue;
    }
    std::optional<Sleep> sleep;
    if (reactor_.lock().try_lock()) {
      Locked locked(reactor_.lock(), std::adopt_lock);
      sleep = look(locked, policy, waiter, satisfied, now);
    } else {
      now = Clock::now();
    }
    if (sleep) {
      waiter.sleep(std::move(sleep->events), nap_until(deadline, now, sleep->duration));
      is_hasty_ = true;
    } else if (!satisfied() && jobs_.is_empty() && policy.yields()) {
      // Not while a job is ready to run: the other ranks would get the processor and wait for its
      // result.
      waiter.yield(policy, now);
    }
    if (now >= deadline && !satisfied()) {
      return false;
    }
    if (now >= next_interrupt_check) {
      next_interrupt_check = now + kNap;
      block_at_exit();
      interrupt();
    }
  }
  return true;
}

std::optional<Driver::Sleep> Driver::prepare_sleep(Locked& locked, TimePoint now,
                                                   milliseconds at_most) {
  Sleep sleep;
  if (reactor_.arm(locked)) {
    busy_since_ = TimePoint::max();
    sleep.events = reactor_.events(locked);
  } else {
    busy_since_ = std::min(busy_since_, now);
    if (now - busy_since_ < kHalfWritten) return std::nullopt;
    at_most = kNapHalfWritten;
  }
  // First set the flag, then check once more: whoever writes after the check sees the flag.
  groups_.set_asleep(locked, true);
  if (groups_.progress_sharing(locked)) {
    groups_.set_asleep(locked, false);
    return std::nullopt;
  }
  sleep.events.push_back({peers_.poll_fd(), POLLIN, 0});
  sleep.duration = nap(locked, now, at_most);
  return sleep;
}

// ----------------------------------------------------------------------------------- the thread

void Driver::start() {
  thread_ = quiet_thread("q7x2-driver", [this] { run(); });
}

bool Driver::stop() {
  if (stop_.exchange(true)) {
    return false;
  }
  parking_.stop_driver();
  thread_.join();
  return true;
}

Driver::Sleep Driver::look() {
  reactor_.lock().let_others_first();
  Locked locked(reactor_.lock());
  groups_.set_asleep(locked, false);
  bool any = false;
  for (int i = 0; i < WaitPolicy::kProgressPerLook; ++i) {
    any |= progress(locked);
  }
  const TimePoint now = Clock::now();
  housekeep(locked, now);
  if (any) {
    spin_until_ = now + WaitPolicy::kSpinAfterEvent;
  }
  const bool busy = tasks_.unfinished() > 0;
  const uint64_t activity = parking_.activity();
  Sleep sleep{{}, kStandBy};
  if (!jobs_.is_empty() || (busy && now < spin_until_)) {
    sleep.duration = milliseconds::zero();
  } else if (busy || activity == seen_activity_) {
    const bool is_idle = !busy && tasks_.active(locked).empty();
    sleep = prepare_sleep(locked, now, is_idle ? kUntilAnEvent : kNap).value_or(Sleep{});
  }
  seen_activity_ = activity;
  parking_.announce_driver(sleep.duration != milliseconds::zero());
  if (!completions_.is_empty()) sleep.duration = milliseconds::zero();
  return sleep;
}

void Driver::run() {
  while (!stop_) {
    try {
      take_turn();
    } catch (const std::exception& exception) {
      {
        Locked locked(reactor_.lock());
        fail(locked, exception);
      }
      parking_.driver_is_up();
      std::this_thread::sleep_for(kStandBy);  // it may fail for the rest of the process's life
    }
  }
}

void Driver::take_turn() {
  Sleep sleep{{}, kStandBy};
  if (parking_.has_waiters() && !is_overdue()) {
    // First set the flag, then check: whoever adds a job after the check sees the flag.
    parking_.announce_driver(true);
    if (jobs_.has_orphans()) sleep.duration = milliseconds::zero();
  } else {
    sleep = look();
  }
  if (sleep.duration == milliseconds::zero()) {
    if (!jobs_.run_any()) ::sched_yield();
    return;
  }
  // Does not sleep if work arrived since the check.
  if (!stop_ && (!sleep.events.empty() || parking_.has_waiters() || tasks_.unfinished() == 0)) {
    if (!sleep.events.empty()) {
      is_hasty_ = true;
    }
    sleep.events.push_back({parking_.driver_fd(), POLLIN, 0});
    ::poll(sleep.events.data(), sleep.events.size(), static_cast<int>(sleep.duration.count()));
  }
  parking_.driver_is_up();
}

}  // namespace q7x2
