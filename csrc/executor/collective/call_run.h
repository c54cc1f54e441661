// CallRun: a call and all that is known of it before its first message: the choice by which it
// runs, its slices, the coder of its messages, and the residence of its elements.
//
// The choice may be made later than the task, by the prerequisites of the call
// (executor/collective/prerequisite.h). It depends on the number of the call among the calls of its
// kind. The time that the call takes is recorded for the next choices (plan/choose/refinement.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "executor/call/block_coder.h"
#include "executor/call/collective_call.h"
#include "executor/call/slicing.h"
#include "executor/collective/plan_call.h"
#include "executor/residence/residence.h"
#include "plan/choose/plan_cache.h"

namespace q7x2 {

class CallRun {
 public:
  explicit CallRun(PlannedCall&& planned);
  CallRun(const CallRun&) = delete;
  CallRun& operator=(const CallRun&) = delete;

  const CollectiveCall& call() const { return call_; }
  /// A hash of all that the ranks must agree on.
  uint64_t fingerprint() const { return fingerprint_; }

  // The choice by which the call runs.

  /// Called when the call is submitted: gives it its number among the calls of its kind.
  void count(Locked&);
  uint64_t number() const { return number_; }
  const std::shared_ptr<PlanCache>& plans() const { return plans_; }
  const std::shared_ptr<PlanCache::Entry>& entry() const { return entry_; }
  const std::shared_ptr<PlanCache::Entry>& counting() const { return counting_; }
  /// Takes the choice for the call. Returns false if there is none yet. Calls with a codec have the
  /// same choice whatever their number.
  bool choose();
  bool has_plan() const { return choice_.plan != nullptr; }

  // The functions below require a Plan.

  const Choice& choice() const { return choice_; }
  const Plan& plan() const { return *choice_.plan; }
  const Op& op(uint32_t index) const { return choice_.plan->ops[index]; }
  /// The Fabric for which the choice was made; null: the one that was measured first.
  const std::shared_ptr<const Fabric>& fabric() const { return fabric_; }
  const Slicing& slicing() const { return slicing_; }
  Slicing& slicing() { return slicing_; }
  /// Null if the call has no codec.
  BlockCoder* coder() const { return coder_.get(); }
  /// Whether the codec must read the whole input before the first slice.
  bool selects() const;

  /// The call is measured from `begin` to `end`.
  void begin() { began_ = plans_->clock().begin(is_measured_); }
  void end();

  // Where its elements are.

  Residence& residence() const { return *residence_; }
  void set_residence(std::unique_ptr<Residence> residence);
  /// Replaces the residence. Returns the old one.
  std::unique_ptr<Residence> replace_residence(std::unique_ptr<Residence> replacement);
  Residence::Run for_residence() { return {call_, choice_, slicing_, coder_.get()}; }

 private:
  void adopt(const Choice& choice);

  CollectiveCall call_;
  const std::shared_ptr<PlanCache> plans_;
  const std::shared_ptr<PlanCache::Entry> entry_;
  const std::shared_ptr<PlanCache::Entry> counting_;  // see PlannedCall
  const uint64_t fingerprint_;
  uint64_t number_ = 0;
  Choice choice_;
  size_t choice_index_ = 0;
  bool is_measured_ = false;
  int64_t began_ = 0;  // time on the clock of the plans
  std::shared_ptr<const Fabric> fabric_;
  Slicing slicing_;
  std::unique_ptr<BlockCoder> coder_;
  std::unique_ptr<Residence> chosen_residence_;  // null: the elements are on the host
  Residence* residence_ = &Host::of_process();
};

}  // namespace q7x2
