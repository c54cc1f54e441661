#include "executor/collective/plan_prerequisites.h"

#include <cstring>
#include <utility>

#include "base/thread_turns.h"
#include "executor/collective/group_connections.h"

namespace q7x2 {
namespace {

using Entry = PlanCache::Entry;

class Announcement final : public Prerequisite {
 public:
  Announcement(std::shared_ptr<PlanCache> plans, std::shared_ptr<Entry> entry, uint32_t agreed)
      : Prerequisite(broadcast(plans, agreed), Publication::kBytes),
        plans_(std::move(plans)),
        entry_(std::move(entry)) {
    if (entry_->is_settled()) plans_->publish(*entry_, memory());
  }

  std::unique_ptr<Job> absorb(Locked&) override {
    plans_->settle(*entry_, memory());
    return nullptr;
  }

 private:
  static PlannedCall broadcast(const std::shared_ptr<PlanCache>& plans, uint32_t agreed) {
    PlannedCall planned{.call = {}, .plans = plans, .entry = plans->courier(), .counting = {}};
    planned.call.collective = Collective::kBroadcast;
    planned.call.root = 0;
    planned.call.agreed = agreed;
    return planned;
  }

  const std::shared_ptr<PlanCache> plans_;
  const std::shared_ptr<Entry> entry_;
};

class TuningRound final : public Prerequisite {
 public:
  enum class Topic : uint8_t { kTimes, kRates, kNewChoice };

  TuningRound(Topic topic, std::shared_ptr<PlanCache> plans, std::shared_ptr<Entry> entry,
              uint64_t number, uint32_t agreed)
      : Prerequisite(all_reduce(topic, plans, agreed), bytes_of(topic, *entry)),
        topic_(topic),
        plans_(std::move(plans)),
        entry_(std::move(entry)),
        number_(number) {}

  bool is_needed(Locked&) const override { return is_needed(); }
  std::unique_ptr<Job> contribute(Locked& locked, Group& group) override;
  std::unique_ptr<Job> absorb(Locked& locked) override;

 private:
  /// Rank 0 plans for rates that have changed.
  class Planning final : public Job {
   public:
    explicit Planning(TuningRound& round) : round_(round) {}

   private:
    void work() override { round_.plans_->propose_anew(*round_.entry_, round_.memory()); }

    TuningRound& round_;
  };

  static PlannedCall all_reduce(Topic topic, const std::shared_ptr<PlanCache>& plans,
                                uint32_t agreed) {
    const bool is_of_times = topic == Topic::kTimes;
    PlannedCall planned{.call = {},
                        .plans = plans,
                        .entry = is_of_times ? plans->tuner() : plans->rate_sampler(),
                        .counting = {}};
    planned.call.collective = Collective::kAllReduce;
    planned.call.dtype = is_of_times ? DType::kInt64 : DType::kInt32;
    planned.call.reduce = is_of_times ? ReduceKind::kMax : ReduceKind::kSum;
    planned.call.agreed = agreed;
    return planned;
  }
  static size_t bytes_of(Topic topic, const Entry& entry) {
    return topic == Topic::kTimes ? sizeof(Refinement::Figures) : entry.reacting().bytes();
  }
  bool is_needed() const {
    switch (topic_) {
      case Topic::kTimes:
        return entry_->refinement().is_active();
      case Topic::kRates:
        return entry_->rate_sample() == Entry::RateSample::kRates;
      case Topic::kNewChoice:
        break;
    }
    return entry_->rate_sample() == Entry::RateSample::kChoice;
  }

  const Topic topic_;
  const std::shared_ptr<PlanCache> plans_;
  const std::shared_ptr<Entry> entry_;
  const uint64_t number_;  // number of the call
};

std::unique_ptr<Job> TuningRound::contribute(Locked& locked, Group& group) {
  switch (topic_) {
    case Topic::kTimes: {
      const Refinement::Figures figures = entry_->refinement().figures();
      std::memcpy(memory().data(), figures.data(), sizeof(figures));
      return nullptr;
    }
    case Topic::kRates:
      entry_->reacting().write(memory(),
                               {group_connections(locked, group, plans_->fabric()->host_of),
                                plans_->reductions().take(), turns_of_this_thread()});
      return nullptr;
    case Topic::kNewChoice:
      break;
  }
  if (group.rank() != 0) return nullptr;
  return std::make_unique<Planning>(*this);
}

std::unique_ptr<Job> TuningRound::absorb(Locked&) {
  if (!is_needed()) return nullptr;
  if (topic_ == Topic::kTimes) {
    Refinement::Figures slowest;
    std::memcpy(slowest.data(), memory().data(), sizeof(slowest));
    entry_->tune(number_, slowest);
  } else {
    plans_->take_rate_sample(*entry_, number_, memory());
  }
  return nullptr;
}

}  // namespace

std::vector<std::shared_ptr<Prerequisite>> prerequisites_of(const std::shared_ptr<PlanCache>& plans,
                                                            const std::shared_ptr<Entry>& entry,
                                                            uint64_t number, uint32_t agreed) {
  using Topic = TuningRound::Topic;
  const auto round = [&](Topic topic) {
    return std::make_shared<TuningRound>(topic, plans, entry, number, agreed);
  };
  switch (entry->prerequisite_of(number)) {
    case Entry::Prerequisite::kNone:
      break;
    case Entry::Prerequisite::kAnnouncement:
      return {std::make_shared<Announcement>(plans, entry, agreed)};
    case Entry::Prerequisite::kTuningRound:
      return {round(Topic::kTimes)};
    case Entry::Prerequisite::kRateSample:
      return {round(Topic::kRates), round(Topic::kNewChoice)};
  }
  return {};
}

}  // namespace q7x2
