#include "servers/offloaded_call.h"

#include <utility>

#include "executor/collective/collective.h"
#include "servers/server_group.h"
#include "transport/run/runtime.h"

namespace q7x2 {

OffloadedCall::OffloadedCall(std::shared_ptr<ServerGroup> servers, std::shared_ptr<Task> task,
                             std::shared_ptr<OffloadAttempt> attempt, Undo undo)
    : servers_(std::move(servers)),
      task_(std::move(task)),
      attempt_(std::move(attempt)),
      undo_(std::move(undo)) {}

std::shared_ptr<Task> OffloadedCall::vote(Locked& locked, const Task& call, uint32_t agreed,
                                          const std::shared_ptr<PlanCache>& plans) {
  word_ = std::make_shared<uint8_t>();
  PlannedCall planned{.call = {}, .plans = plans, .entry = plans->tuner(), .counting = {}};
  planned.call.collective = Collective::kAllReduce;
  planned.call.input = planned.call.output = {{reinterpret_cast<std::byte*>(word_.get()), 1}};
  planned.call.dtype = DType::kUInt8;
  planned.call.reduce = ReduceKind::kMax;
  planned.call.agreed = agreed;
  const auto latch = std::make_shared<InputLatch>(call.group().runtime().completions());
  const auto task = std::make_shared<CollectiveTask>(call.group_pointer(), std::move(planned),
                                                     word_, call.timeout());
  task->set_vote({servers_, latch, call.weak_from_this()});
  attempt_->put_to_vote(locked, {servers_, word_, latch});
  vote_ = task;
  return vote_;
}

bool OffloadedCall::is_decided(Locked& locked) {
  if (!vote_) return true;
  // If it failed, so will the call with its group.
  if (!vote_->done() || vote_->error()) return false;
  if (!servers_->is_dropped(locked)) was_served_ = servers_->take_verdict(locked, *word_);
  vote_.reset();
  return true;
}

class OffloadedCall::Restoring final : public Job {
 public:
  explicit Restoring(const Undo& undo) : undo_(undo) {}

 private:
  void work() override { undo_.run(); }

  const Undo& undo_;
};

std::unique_ptr<Job> OffloadedCall::restoring() const {
  if (was_served_ || !undo_.run || attempt_->is_declined()) return nullptr;
  return std::make_unique<Restoring>(undo_);
}

}  // namespace q7x2
