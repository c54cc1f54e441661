#include "executor/probe/clock_task.h"

#include "transport/run/runtime.h"

namespace q7x2 {
namespace {

// No message of the user is there yet: the group is still being made.
constexpr uint32_t kQuestion = 9;
constexpr uint32_t kAnswer = 10;

constexpr int kRoundTrips = 32;

}  // namespace

ClockOffset ClockTask::offset() const {
  // Half a nanosecond is lost by the division.
  return {.nanoseconds = ahead_, .uncertainty = shortest_ / 2 + 1};
}

void ClockTask::begin(Locked& locked) {
  if (asks_) {
    ask(locked);
  } else {
    receive(locked, kQuestion, &heard_, sizeof(heard_));
  }
}

void ClockTask::ask(Locked& locked) {
  receive(locked, kAnswer, &heard_, sizeof(heard_));
  sent_ = round_trips_ + 1 < kRoundTrips ? 1 : 0;
  asked_at_ = std::chrono::nanoseconds(now_().time_since_epoch()).count();
  send(locked, kQuestion, &sent_, sizeof(sent_));
}

void ClockTask::received(Locked& locked, uint32_t, size_t) {
  const int64_t now = std::chrono::nanoseconds(now_().time_since_epoch()).count();
  if (!asks_) {
    if (heard_ != 0) receive(locked, kQuestion, &heard_, sizeof(heard_));
    sent_ = now;
    send(locked, kAnswer, &sent_, sizeof(sent_));
    return;
  }
  const int64_t took = now - asked_at_;
  if (took < shortest_) {
    shortest_ = took;
    ahead_ = heard_ - (asked_at_ + took / 2);
  }
  if (++round_trips_ < kRoundTrips) ask(locked);
}

ClockOffset compare_clocks(const std::shared_ptr<Group>& group, const std::vector<int>& ranks,
                           std::chrono::milliseconds timeout, ClockTask::Now now) {
  const bool asks = group->rank() != 0;
  std::vector<std::shared_ptr<ClockTask>> tasks;
  for (const int rank : asks ? std::vector<int>{0} : ranks) {
    tasks.push_back(std::make_shared<ClockTask>(group, rank, asks, timeout, now));
    group->runtime().submit(tasks.back(), /*caller_waits=*/false);
  }
  for (const auto& task : tasks) {
    group->runtime().wait(*task, TimePoint::max());
    if (task->error()) throw Error(*task->error());
  }
  return asks ? tasks[0]->offset() : ClockOffset();
}

}  // namespace q7x2
