// What precedes a call: the announcement of rank 0's choice, tuning rounds of the choice, rate
// samples at rates, sums of counts.
#include <cstring>
#include <span>
#include <utility>

#include "base/thread_turns.h"
#include "executor/collective/collective.h"
#include "executor/collective/group_connections.h"

namespace q7x2 {
namespace {

/// Planning takes as long as a job on so much memory: too long for who holds the lock.
constexpr size_t kPlanningBytes = size_t{16} << 20;

}  // namespace

/// Rank 0's planning for rates that have changed.
class CollectiveTask::PlanningJob final : public Job {
 public:
  explicit PlanningJob(CollectiveTask& sample) : sample_(sample) {}

 private:
  void work() override { sample_.plans_->propose_anew(*sample_.sampled_, sample_.memory()); }
  CollectiveTask& sample_;
};

// The call is submitted all the same, so that its group fails with it.
std::shared_ptr<Task> CollectiveTask::prerequisite(Locked& locked) {
  if (!call_of_prerequisite_.expired()) return prerequisite_;  // it is one itself
  number_ = entry_->calls();
  entry_->count();
  if (attempt_) return attempt_->grant();
  if (counting_) return counting_;
  try {
    if (offload_) return offload_->vote(locked, *this, static_cast<uint32_t>(fingerprint_), plans_);
    switch (entry_->prerequisite_of(number_)) {
      case PlanCache::Entry::Prerequisite::kNone:
        break;
      case PlanCache::Entry::Prerequisite::kAnnouncement:
        prerequisite_ = announcement();
        break;
      case PlanCache::Entry::Prerequisite::kTuningRound:
        prerequisite_ = tune();
        break;
      case PlanCache::Entry::Prerequisite::kRateSample:
        prerequisite_ = rate_sample(RateSample::kChoice);
        prerequisite_->prerequisite_ = rate_sample(RateSample::kRates);
        break;
    }
  } catch (...) {
    no_prerequisite_ = std::current_exception();
  }
  return prerequisite_;
}

std::shared_ptr<CollectiveTask> CollectiveTask::announcement() {
  CollectiveCall call;
  call.collective = Collective::kBroadcast;
  call.root = 0;
  const auto task = before_this(std::move(call), Publication::kBytes, plans_->courier());
  if (entry_->is_settled()) plans_->publish(*entry_, task->memory());
  return task;
}

std::shared_ptr<CollectiveTask> CollectiveTask::tune() {
  CollectiveCall call;
  call.collective = Collective::kAllReduce;
  call.dtype = DType::kInt64;
  call.reduce = ReduceKind::kMax;
  const auto task = before_this(std::move(call), sizeof(Refinement::Figures), plans_->tuner());
  task->tuned_ = entry_;
  return task;
}

// Two of them precede a call: if the first one finds that rates have changed, the second one brings
// the choice for them. So the call is made by it already.
std::shared_ptr<CollectiveTask> CollectiveTask::rate_sample(RateSample look) {
  CollectiveCall call;
  call.collective = Collective::kAllReduce;
  call.dtype = DType::kInt32;
  const auto task =
      before_this(std::move(call), entry_->reacting().bytes(), plans_->rate_sampler());
  task->sampled_ = entry_;
  task->rate_sample_ = look;
  task->number_of_call_ = number_;
  return task;
}

std::shared_ptr<CollectiveTask> CollectiveTask::sum_of_counts(
    std::shared_ptr<PlanCache::Entry> entry) const {
  const std::span counts = std::as_writable_bytes(std::span(*counts_));
  PlannedCall sum{.call = {}, .plans = plans_, .entry = std::move(entry), .counting = {}};
  sum.call.collective = Collective::kAllReduce;
  sum.call.input = sum.call.output = {{counts.data(), counts.size()}};
  sum.call.dtype = DType::kInt32;
  sum.call.title = "counts of a balanced all_reduce";
  auto task = std::make_shared<CollectiveTask>(group_pointer(), std::move(sum), counts_, timeout());
  task->is_prerequisite_ = true;
  return task;
}

std::shared_ptr<CollectiveTask> CollectiveTask::before_this(
    CollectiveCall call, size_t bytes, std::shared_ptr<PlanCache::Entry> entry) {
  const auto memory = std::make_shared<std::vector<std::byte>>(bytes);
  call.input = call.output = {{memory->data(), memory->size()}};
  call.agreed = static_cast<uint32_t>(fingerprint_);
  PlannedCall planned{
      .call = std::move(call), .plans = plans_, .entry = std::move(entry), .counting = {}};
  const auto task =
      std::make_shared<CollectiveTask>(group_pointer(), std::move(planned), memory, timeout());
  task->call_of_prerequisite_ = weak_from_this();
  task->is_prerequisite_ = true;
  return task;
}

void CollectiveTask::take_news() {
  const std::span<const std::byte> news = prerequisite_->memory();
  if (prerequisite_->sampled_) {
    PlanCache::Entry& entry = *prerequisite_->sampled_;
    if (entry.rate_sample() == prerequisite_->rate_sample_) {
      plans_->take_rate_sample(entry, prerequisite_->number_of_call_, news);
    }
  } else if (!prerequisite_->tuned_) {
    plans_->settle(*entry_, news);
  } else if (entry_->refinement().is_active()) {
    Refinement::Figures slowest;
    std::memcpy(slowest.data(), news.data(), sizeof(slowest));
    entry_->tune(number_, slowest);
  }
  prerequisite_.reset();
}

bool CollectiveTask::is_idle() const {
  return (tuned_ && !tuned_->refinement().is_active()) ||
         (sampled_ && sampled_->rate_sample() != rate_sample_);
}

void CollectiveTask::contribute(Locked& locked) {
  if (tuned_) {
    const Refinement::Figures figures = tuned_->refinement().figures();
    std::memcpy(memory().data(), figures.data(), sizeof(figures));
  } else if (sampled_ && rate_sample_ == RateSample::kRates) {
    sampled_->reacting().write(memory(),
                               {group_connections(locked, group(), plans_->fabric()->host_of),
                                plans_->reductions().take(), turns_of_this_thread()});
  } else if (sampled_ && group().rank() == 0) {
    planning_ = std::make_unique<PlanningJob>(*this);
    enqueue(locked, *planning_, kPlanningBytes);
  }
}

}  // namespace q7x2
