// Participant: one rank's end of the probe. It sends and receives small values, and measures what
// it is told to.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "executor/collective/carry_out.h"
#include "executor/collective/message.h"
#include "executor/probe/probe_options.h"
#include "executor/probe/probe_tasks.h"
#include "transport/run/runtime.h"

namespace q7x2 {

/// What a conversation has measured. A ping: round trip, spread, overhead. A stream: of what came,
/// rate and spread; the rate that was acknowledged of what went; the burst of what came.
struct Report {
  std::array<double, 4> figures{};
};
static_assert(std::is_trivially_copyable_v<Report>);

class Participant {
 public:
  // A private link that says nothing for so long leads nowhere.
  static constexpr std::chrono::milliseconds kTrial{1000};

  Participant(std::shared_ptr<Group> group, const ProbeOptions& options)
      : group_(std::move(group)), options_(options) {}

  Group& group() { return *group_; }
  const std::shared_ptr<Group>& group_pointer() const { return group_; }

  template <typename T>
  void send_value(int to, uint32_t tag, const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto bytes =
        std::make_shared<std::string>(reinterpret_cast<const char*>(&value), sizeof(value));
    run(message(MessageTask::Direction::kSend, to, tag, bytes));
  }
  /// The value and the rank that it came from. `from` may be MessageTask::kAnySource.
  template <typename T>
  std::pair<T, int> receive_value(int from, uint32_t tag) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto bytes = std::make_shared<std::string>(sizeof(T), '\0');
    const auto task = message(MessageTask::Direction::kReceive, from, tag, bytes);
    run(task);
    T value;
    std::memcpy(&value, bytes->data(), sizeof(value));
    return {value, task->source()};
  }

  Report ping(int peer, Wire wire, bool first) {
    const auto task = std::make_shared<PingTask>(group_, peer, wire, first, timeout_of(wire));
    if (!run_over(wire, task) || !first) return {};
    return {{task->round_trip(), task->spread(), task->overhead(), 0}};
  }

  Report stream(int peer, Wire wire, double seconds) {
    const auto task = std::make_shared<StreamTask>(group_, peer, wire, seconds, timeout_of(wire));
    if (!run_over(wire, task)) return {};
    return {{task->arrivals().steady_rate(), task->arrivals().spread(),
             task->acknowledgements().whole_rate(), task->arrivals().burst()}};
  }

 private:
  std::shared_ptr<MessageTask> message(MessageTask::Direction direction, int peer, uint32_t tag,
                                       std::shared_ptr<std::string> bytes) {
    char* data = bytes->data();
    const size_t length = bytes->size();
    return std::make_shared<MessageTask>(group_, direction, peer, tag, data, length,
                                         std::move(bytes), options_.timeout);
  }

  std::chrono::milliseconds timeout_of(Wire wire) const {
    return wire == Wire::kPrivate ? std::min(options_.timeout, kTrial) : options_.timeout;
  }

  /// False where a private link turned out not to work: then there is none.
  bool run_over(Wire wire, const std::shared_ptr<Task>& task) {
    if (wire == Wire::kShared) {
      run(task);
      return true;
    }
    group_->runtime().submit(task, /*caller_waits=*/true);
    group_->runtime().wait(*task, TimePoint::max());
    if (const auto error = group_->error()) throw Error(*error);
    return !task->error();
  }

  void run(const std::shared_ptr<Task>& task) { carry_out(*group_, task); }

  const std::shared_ptr<Group> group_;
  const ProbeOptions options_;
};

}  // namespace q7x2
