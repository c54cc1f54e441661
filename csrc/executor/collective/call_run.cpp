#include "executor/collective/call_run.h"

#include <utility>

#include "executor/collective/fingerprint.h"
#include "kernels/cpu/reduce.h"

namespace q7x2 {

CallRun::CallRun(PlannedCall&& planned)
    : call_(std::move(planned.call)),
      plans_(std::move(planned.plans)),
      entry_(std::move(planned.entry)),
      counting_(std::move(planned.counting)),
      fingerprint_(fingerprint_of(call_)) {
  if (is_reduction(call_.collective)) {
    check_reducible(call_.dtype, call_.reduce, call_.divisor);
  }
  if (call_.coding && entry_->is_settled()) adopt(entry_->choice());
}

void CallRun::count(Locked&) {
  number_ = entry_->calls();
  entry_->count();
}

bool CallRun::choose() {
  if (!entry_->is_settled()) return false;
  choice_index_ = entry_->refinement().choice_of(number_);
  is_measured_ = entry_->refinement().measures(number_);
  adopt(plans_->choice(*entry_, choice_index_));
  return true;
}

void CallRun::adopt(const Choice& choice) {
  choice_ = choice;
  fabric_ = entry_->fabric();
  slicing_ = Slicing(call_, choice_);
  if (call_.coding) {
    coder_ = std::make_unique<BlockCoder>(call_.coding, call_.dtype, slicing_.longest_part(),
                                          slicing_.bytes(), is_reduction(call_.collective));
  }
}

bool CallRun::selects() const {
  return coder_ && choice_.plan->edges != Edges::kNone && call_.coding.codec->traits().selects;
}

void CallRun::end() {
  const int64_t took = plans_->clock().end(is_measured_, began_);
  if (is_measured_) entry_->record(choice_index_, slicing_.bytes(), took);
}

void CallRun::set_residence(std::unique_ptr<Residence> residence) {
  chosen_residence_ = std::move(residence);
  residence_ = chosen_residence_.get();
  if (has_plan()) residence_->prepare(for_residence());
}

std::unique_ptr<Residence> CallRun::replace_residence(std::unique_ptr<Residence> replacement) {
  residence_ = replacement.get();
  return std::exchange(chosen_residence_, std::move(replacement));
}

}  // namespace q7x2
