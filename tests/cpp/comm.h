// A group with a planner, and short names for the calls of tests.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "executor/collective/collective.h"
#include "executor/collective/message.h"
#include "executor/collective/plan_call.h"
#include "executor/probe/probe.h"
#include "plan/choose/planner.h"
#include "slowdown.h"
#include "transport/group/group.h"
#include "transport/run/runtime.h"

namespace q7x2::test {

inline constexpr std::chrono::milliseconds kLong{60'000};
/// Longer than any correct call takes, but shorter than the deadline of `run_ranks`.
inline constexpr std::chrono::seconds kPatience{40 * kSlowdown};

/// Shared with the task, so that it lives until UCX no longer uses it.
template <typename T>
using Buffer = std::shared_ptr<std::vector<T>>;

template <typename T>
Buffer<T> buffer(size_t count, T value = {}) {
  return std::make_shared<std::vector<T>>(count, value);
}

/// `first`, `first` + 1, ...
inline Buffer<int32_t> counting(size_t count, int32_t first) {
  auto data = buffer<int32_t>(count);
  std::iota(data->begin(), data->end(), first);
  return data;
}

template <typename T>
Region region(std::vector<T>& data) {
  return {reinterpret_cast<std::byte*>(data.data()), data.size() * sizeof(T)};
}

class Comm {
 public:
  explicit Comm(std::shared_ptr<Group> group, const std::string& algorithm = "")
      : group_(std::move(group)),
        fabric_(std::make_shared<Fabric>(Fabric::assumed(placement_of(*group_).host_of))),
        plans_(std::make_shared<PlanCache>(
            std::make_shared<Planner>(group_->rank(), fabric_, algorithm), group_->rank(),
            group_->world_size(), "a test")) {}

  Group& group() { return *group_; }
  const Fabric& fabric() const { return *fabric_; }
  PlanCache& plans() { return *plans_; }
  int rank() const { return group_->rank(); }
  int size() const { return group_->world_size(); }

  std::shared_ptr<CollectiveTask> start(CollectiveCall call, std::shared_ptr<void> keep_alive,
                                        std::chrono::milliseconds timeout = kLong) {
    return submitted(make(std::move(call), std::move(keep_alive), timeout));
  }

  /// A task that has not been submitted yet.
  std::shared_ptr<CollectiveTask> make(CollectiveCall call, std::shared_ptr<void> keep_alive,
                                       std::chrono::milliseconds timeout = kLong) {
    return CollectiveTask::make(group_, plan_call(std::move(call), plans_, rank(), size()),
                                std::move(keep_alive), timeout);
  }

  /// A collective over one flat run of elements.
  template <typename T>
  std::shared_ptr<CollectiveTask> flat(Collective collective, const Buffer<T>& data, DType dtype,
                                       std::chrono::milliseconds timeout = kLong, int root = -1,
                                       ReduceKind reduce = ReduceKind::kSum) {
    CollectiveCall call;
    call.collective = collective;
    call.root = root;
    call.input = call.output = {region(*data)};
    call.dtype = dtype;
    call.reduce = reduce;
    return start(std::move(call), data, timeout);
  }

  std::shared_ptr<CollectiveTask> all_reduce(const Buffer<int32_t>& data,
                                             std::chrono::milliseconds timeout = kLong) {
    return flat(Collective::kAllReduce, data, DType::kInt32, timeout);
  }

  std::shared_ptr<CollectiveTask> barrier(std::chrono::milliseconds timeout = kLong) {
    return flat(Collective::kBarrier, buffer<char>(1), DType::kBytes, timeout);
  }

  template <typename T>
  std::shared_ptr<MessageTask> send(int to, uint32_t tag, const Buffer<T>& data,
                                    std::chrono::milliseconds timeout = kLong) {
    return message(MessageTask::Direction::kSend, to, tag, data, timeout);
  }

  template <typename T>
  std::shared_ptr<MessageTask> receive(int from, uint32_t tag, const Buffer<T>& data,
                                       std::chrono::milliseconds timeout = kLong) {
    return message(MessageTask::Direction::kReceive, from, tag, data, timeout);
  }

  /// Waits until `task` is done, successfully or not.
  void await(const Task& task) {
    if (!group_->runtime().wait(task, Clock::now() + kPatience)) {
      ADD_FAILURE() << task.name() << " was not done in time";
      throw std::runtime_error("was not done in time");
    }
  }

  /// Waits until `task` is done, and expects success.
  void succeed(const Task& task) {
    await(task);
    if (task.error()) throw Error(*task.error());
  }

  /// Waits until `task` is done, and expects a failure.
  Error failure(const Task& task) {
    await(task);
    if (!task.error()) throw std::runtime_error(task.name() + " succeeded, expected an error");
    return *task.error();
  }

 private:
  template <typename T>
  std::shared_ptr<MessageTask> message(MessageTask::Direction direction, int peer, uint32_t tag,
                                       const Buffer<T>& data, std::chrono::milliseconds timeout) {
    const Region memory = region(*data);
    return submitted(std::make_shared<MessageTask>(group_, direction, peer, tag, memory.data,
                                                   memory.bytes, data, timeout));
  }

  template <typename T>
  std::shared_ptr<T> submitted(std::shared_ptr<T> task) {
    group_->runtime().submit(task, /*caller_waits=*/false);
    return task;
  }

  const std::shared_ptr<Group> group_;
  const std::shared_ptr<const Fabric> fabric_;
  const std::shared_ptr<PlanCache> plans_;
};

}  // namespace q7x2::test
