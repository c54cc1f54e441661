#include "servers/offloaded_call.h"

#include <utility>

#include "executor/collective/collective.h"
#include "executor/collective/prerequisite.h"
#include "transport/run/runtime.h"
#include "transport/task/input_latch.h"

namespace q7x2 {

class OffloadedCall::Vote final : public Prerequisite {
 public:
  Vote(std::shared_ptr<Verdicts> verdicts, std::shared_ptr<OffloadAttempt> attempt,
       const std::shared_ptr<PlanCache>& plans, uint32_t agreed)
      : Prerequisite(all_reduce(plans, agreed), 1),
        verdicts_(std::move(verdicts)),
        attempt_(std::move(attempt)) {}

  bool names_late() const override { return false; }  // the attempt names them
  bool is_needed(Locked& locked) const override { return !verdicts_->is_dropped(locked); }
  std::unique_ptr<Job> contribute(Locked&, Group&) override {
    memory()[0] = std::byte{verdicts_->word_of(*attempt_->grant(), attempt_->error())};
    return nullptr;
  }
  std::unique_ptr<Job> absorb(Locked& locked) override {
    if (is_needed(locked)) {
      was_served_ = verdicts_->take(locked, std::to_integer<uint8_t>(memory()[0]));
    }
    return nullptr;
  }
  bool was_served() const { return was_served_; }

 private:
  static PlannedCall all_reduce(const std::shared_ptr<PlanCache>& plans, uint32_t agreed) {
    PlannedCall planned{.call = {}, .plans = plans, .entry = plans->tuner(), .counting = {}};
    planned.call.collective = Collective::kAllReduce;
    planned.call.dtype = DType::kUInt8;
    planned.call.reduce = ReduceKind::kMax;
    planned.call.agreed = agreed;
    return planned;
  }

  const std::shared_ptr<Verdicts> verdicts_;
  const std::shared_ptr<OffloadAttempt> attempt_;
  bool was_served_ = false;
};

std::shared_ptr<Task> OffloadedCall::vote(Locked& locked, const Task& call, uint32_t agreed,
                                          const std::shared_ptr<PlanCache>& plans) {
  vote_ = std::make_shared<Vote>(verdicts_, attempt_, plans, agreed);
  voting_ = CollectiveTask::before(call, vote_);
  const auto latch = std::make_shared<InputLatch>(call.group().runtime().completions());
  voting_->set_inputs(latch);
  attempt_->when_done(locked, latch);
  return voting_;
}

bool OffloadedCall::is_decided(Locked& locked) {
  if (!voting_) return true;
  // If the vote failed, its group fails, and the call with it.
  if (!voting_->done() || voting_->error()) return false;
  vote_->absorb(locked);
  was_served_ = vote_->was_served();
  voting_.reset();
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
