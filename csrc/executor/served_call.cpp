#include "executor/served_call.h"

#include <utility>

#include "executor/annex.h"
#include "executor/collective.h"
#include "transport/runtime.h"

namespace q7x2 {

ServedCall::ServedCall(std::shared_ptr<Annex> annex, std::shared_ptr<Task> task,
                       std::shared_ptr<Attempt> attempt, Undo undo)
    : annex_(std::move(annex)),
      task_(std::move(task)),
      attempt_(std::move(attempt)),
      undo_(std::move(undo)) {}

std::shared_ptr<Task> ServedCall::vote(Locked& locked, const Task& call, uint32_t agreed,
                                       const std::shared_ptr<PlanBook>& book) {
  word_ = std::make_shared<uint8_t>();
  PlannedCall planned{.call = {}, .book = book, .page = book->reviewer(), .counting = {}};
  planned.call.collective = Collective::kAllReduce;
  planned.call.input = planned.call.output = {{reinterpret_cast<std::byte*>(word_.get()), 1}};
  planned.call.dtype = DType::kUInt8;
  planned.call.reduce = ReduceKind::kMax;
  planned.call.agreed = agreed;
  const auto latch = std::make_shared<InputLatch>(call.group().runtime().completions());
  const auto task = std::make_shared<CollectiveTask>(call.group_pointer(), std::move(planned),
                                                     word_, call.timeout());
  task->set_vote({annex_, latch, call.weak_from_this()});
  attempt_->put_to_vote(locked, {annex_, word_, latch});
  vote_ = task;
  return vote_;
}

bool ServedCall::is_decided(Locked& locked) {
  if (!vote_) return true;
  // If it failed, so will the call with its group.
  if (!vote_->done() || vote_->error()) return false;
  if (!annex_->is_dropped(locked)) was_served_ = annex_->take_verdict(locked, *word_);
  vote_.reset();
  return true;
}

class ServedCall::Restoring final : public Job {
 public:
  explicit Restoring(const Undo& undo) : undo_(undo) {}

 private:
  void work() override { undo_.run(); }

  const Undo& undo_;
};

std::unique_ptr<Job> ServedCall::restoring() const {
  if (was_served_ || !undo_.run || attempt_->is_declined()) return nullptr;
  return std::make_unique<Restoring>(undo_);
}

}  // namespace q7x2
