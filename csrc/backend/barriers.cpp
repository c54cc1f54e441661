// The barrier, and the monitored barrier, which names the ranks that did not arrive.
#include <algorithm>

#include "backend/collectives.h"
#include "executor/collective/message.h"

namespace q7x2::collectives {

WorkPointer barrier(GroupCalls& group, const c10d::BarrierOptions& opts) {
  group.enter();
  CallBuilder call{group.size(), c10d::OpType::BARRIER, "q7x2:barrier", {},
                   {},           opts.timeout,          opts.asyncOp};
  // A barrier is complete only when all collectives before it are.
  call.after = group.runtime().tasks_of(*group.group());
  std::erase_if(call.after, [](const auto& task) { return task->done() || !task->takes_turn(); });
  call.calls.emplace_back(Collective::kBarrier, DType::kBytes)
      .flat(at::zeros({1}, at::kByte), TensorCall::Use::kBoth);
  return group.launch(std::move(call));
}

// Rank 0 receives a message from every rank and then answers all, so it knows who did not arrive.
void monitored_barrier(GroupCalls& group, const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  group.enter();
  group.refuse_estimate("a monitored barrier");
  // User tags are not negative as int32, and those of windows have the next bit, too.
  const uint32_t tag = uint32_t{1} << 31 | (group.next_barrier() & ~(uint32_t{3} << 30));
  const auto timeout = group.effective(opts.timeout);
  const TimePoint deadline = Clock::now() + timeout;
  const auto token = std::make_shared<std::byte>();
  const auto post = [&](MessageTask::Direction direction, int peer) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    auto task = std::make_shared<MessageTask>(group.group(), direction, peer, tag, token.get(), 1,
                                              token, std::max(left, std::chrono::milliseconds(1)));
    group.runtime().submit(task, /*caller_waits=*/true);
    return task;
  };
  group.count_collective();
  if (group.rank() != 0) {
    for (const auto direction : {MessageTask::Direction::kSend, MessageTask::Direction::kReceive}) {
      const auto task = post(direction, 0);
      group.runtime().wait(*task, TimePoint::max());
      TORCH_CHECK_WITH(DistBackendError, !task->error(), "Rank ", group.rank(),
                       " successfully reached monitoredBarrier, but received "
                       "errors while waiting "
                       "for send/recv from rank 0. Please check rank 0 logs "
                       "for faulty rank.\n"
                       "Original exception: ",
                       task->error()->what());
    }
    return;
  }
  TORCH_CHECK_WITH(DistBackendError, timeout > std::chrono::milliseconds::zero(),
                   "Rank 0 timed out in monitoredBarrier after ", timeout.count(), " ms.");
  std::vector<std::shared_ptr<MessageTask>> arrivals;
  for (int rank = 1; rank < group.size(); ++rank) {
    arrivals.push_back(post(MessageTask::Direction::kReceive, rank));
  }
  std::string missing;
  size_t count = 0;
  for (int rank = 1; rank < group.size(); ++rank) {
    const auto& task = arrivals[static_cast<size_t>(rank) - 1];
    group.runtime().wait(*task, TimePoint::max());
    if (task->error()) {
      missing += (count++ == 0 ? "" : ", ") + std::to_string(rank);
      if (!wait_all_ranks) {
        break;
      }
    }
  }
  TORCH_CHECK_WITH(DistBackendError, count == 0, "[Rank 0]: Rank", count > 1 ? "s " : " ", missing,
                   " failed to pass monitoredBarrier in ", timeout.count(), " ms");
  std::vector<std::shared_ptr<MessageTask>> answers;
  for (int rank = 1; rank < group.size(); ++rank) {
    answers.push_back(post(MessageTask::Direction::kSend, rank));
  }
  for (const auto& task : answers) {
    group.runtime().wait(*task, TimePoint::max());
    TORCH_CHECK_WITH(DistBackendError, !task->error(),
                     "[Rank 0]: monitoredBarrier could not answer: ", task->error()->what());
  }
}

}  // namespace q7x2::collectives
