// Participant: one rank's end of the probe. It sends and receives small values, and measures what
// it is told to.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "executor/collective/carry_out.h"
#include "executor/collective/message.h"
#include "executor/probe/order.h"
#include "executor/probe/probe_options.h"
#include "executor/probe/probe_tasks.h"
#include "transport/run/runtime.h"

namespace q7x2 {

class Participant {
 public:
  // A private link that is silent for this long leads nowhere.
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

  /// Talks to another rank as it is told; not with Act::kEnd.
  Report obey(const Order& order, Wire wire) {
    switch (order.act) {
      case Order::Act::kPing:
        return ping(order, wire);
      case Order::Act::kStream:
        return stream(order, wire);
      case Order::Act::kTrain:
        return train(order, wire);
      case Order::Act::kEnd:
        break;
    }
    throw Error(ErrorCode::kMismatch, "the probe gives an order that is not known", 0);
  }

 private:
  Report ping(const Order& order, Wire wire) {
    const bool first = order.first != 0;
    const auto task = std::make_shared<PingTask>(group_, order.peer, wire, first, timeout_of(wire));
    if (!run_over(wire, task) || !first) return {};
    return {{task->round_trip(), task->spread(), task->overhead(), 0}};
  }

  Report stream(const Order& order, Wire wire) {
    const auto task = std::make_shared<StreamTask>(group_, order.peer, wire, order.seconds,
                                                   far_of(order), timeout_of(wire));
    if (!run_over(wire, task)) return {};
    const StreamMeter& arrivals = task->arrivals();
    return {{arrivals.steady_rate(), arrivals.spread(), task->acknowledgements().confirmed(),
             arrivals.burst()}};
  }

  static StreamTask::Far far_of(const Order& order) {
    const bool both_ways = order.wire == static_cast<int32_t>(Wire::kStream);
    return {.round_trip = order.round_trip,
            .sends = both_ways || order.first != 0,
            .receives = both_ways || order.first == 0};
  }

  Report train(const Order& order, Wire wire) {
    if (order.bytes == 0 || order.bytes > TrainTask::kMostBytes) {
      throw Error(ErrorCode::kMismatch,
                  "the probe wants messages of " + std::to_string(order.bytes) + " bytes", 0);
    }
    const auto task = std::make_shared<TrainTask>(group_, order.peer, wire, order.bytes,
                                                  order.first != 0, timeout_of(wire));
    if (!run_over(wire, task)) return {};
    return {{task->seconds(), 0, 0, 0}};
  }

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

  /// Returns false if a private link does not work.
  bool run_over(Wire wire, const std::shared_ptr<Task>& task) {
    if (wire != Wire::kPrivate) {
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
