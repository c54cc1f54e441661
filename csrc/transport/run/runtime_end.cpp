// Waits of a runtime whose process is about to leave a group, or to end.
#include <chrono>
#include <thread>
#include <utility>

#include "transport/group/group.h"
#include "transport/run/runtime.h"

namespace q7x2 {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLeavePatience{5000};  // without progress, for calls that other ranks need

}  // namespace

bool Runtime::is_missed(Locked& locked, Task& task) {
  const Group& group = task.group();
  if (task.is_over(locked) || !group.is_usable(locked)) return false;
  if (task.takes_turn()) return group.departure().may_complete(task.record(locked).sequence);
  const PendingRequest* const request = task.record(locked).requests.first();
  return request != nullptr && !request->is_receive && !group.departure().is_leaving(request->peer);
}

void Runtime::finish_collectives(Group* group) {
  if (driver_.is_current_thread()) return;
  size_t awaited = 0;
  const auto bytes_of_awaited = [&] {
    Locked locked(lock());
    awaited = 0;
    Traffic traffic;
    for (const auto& task : tasks_.active(locked)) {
      if ((group != nullptr && &task->group() != group) || !is_missed(locked, *task)) continue;
      ++awaited;
      traffic += task->record(locked).traffic;
    }
    return traffic.sent_network + traffic.received_network + traffic.sent_memory +
           traffic.received_memory;
  };
  bool is_first = true;
  size_t last_awaited = 0;
  uint64_t last_bytes = 0;
  TimePoint until{};
  for (;;) {
    const uint64_t bytes = bytes_of_awaited();
    if (awaited == 0) return;
    if (std::exchange(is_first, false)) groups_.say_last_call(group);
    // While there is progress, the patience starts again.
    if (awaited != last_awaited || bytes != last_bytes) until = Clock::now() + kLeavePatience;
    if (Clock::now() >= until) return;
    last_awaited = awaited;
    last_bytes = bytes;
    std::this_thread::sleep_for(milliseconds(1));
  }
}

// Waits until no task is unfinished and no callback runs. Returns false if some still are.
bool Runtime::rest(TimePoint tasks_until, TimePoint callbacks_until) {
  for (;;) {
    const TimePoint now = Clock::now();
    const bool tasks_rest = tasks_.unfinished() == 0 || now >= tasks_until;
    const bool is_busy = notifier_.is_busy() || (dumps_ && dumps_->is_busy());
    const bool callbacks_rest = !is_busy || now >= callbacks_until;
    if (tasks_rest && callbacks_rest) {
      return !is_busy;
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
}

}  // namespace q7x2
