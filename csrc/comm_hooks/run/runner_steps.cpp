// When a step of a model begins and ends, what policies decide before it, and what they learn from
// it.
//
// A step is the buckets of one backward. DDP marks the last bucket. If DDP may leave out buckets,
// the step ends with the backward.
#include <utility>

#include "comm_hooks/run/backward_end.h"
#include "comm_hooks/run/runner.h"

namespace q7x2 {

void HookRunner::begin_step() {
  in_step_ = true;
  const double now = monotonic_seconds();
  if (step_begin_ > 0) context_.last_step = {now - step_begin_, wire_seconds_};
  step_begin_ = now;
  wire_seconds_ = 0;
  facts_ = {};
}

void HookRunner::expect_fewer_buckets() {
  worker_->run([this] { buckets_may_be_missing_ = true; });
}

/// Other backwards may end too: checkpointing recomputes parts of the model with their own
/// backwards.
void HookRunner::await_end_of_backward() {
  const int backward = current_backward();
  if (serves_ == Serves::kManyModels || backward == -1 || backward == awaited_) return;
  awaited_ = backward;
  // The runner may be destroyed by then; then its worker, which is stopped, drops this.
  when_backward_ends([this, worker = worker_] {
    worker->post(Worker::Urgency::kNow, [this] {
      if (!in_step_) return;
      backward_ended_ = true;
      if (is_step_over()) end_step();
    });
  });
}

bool HookRunner::begins_another_step(const HookJob& job) const {
  if (!in_step_ || jobs_.size() > 1) return false;
  return job.is_first || (job.is_ordered && job.bucket.index <= last_index_);
}

bool HookRunner::is_step_over() const {
  return jobs_.empty() && (last_bucket_came_ || (buckets_may_be_missing_ && backward_ended_));
}

void HookRunner::end_reductions() {
  worker_->run([this] {
    if (in_step_ && jobs_.empty()) end_step();
  });
}

void HookRunner::end_step() {
  const bool keep = !overflowed_;
  facts_.step = step_;
  facts_.is_finite = keep;
  last_facts_ = std::exchange(facts_, {});
  in_step_ = last_bucket_came_ = backward_ended_ = overflowed_ = false;
  ++step_;
  keep ? hook_->commit() : hook_->abort();
  ++stats_.steps;
  stats_.skipped_steps += keep ? 0 : 1;
}

void HookRunner::decide(Decision decision) {
  between_steps([&] {
    for (size_t number = 0; number < decision.policies.size(); ++number) {
      hook_->check(number, decision.policies[number]);
    }
    context_.decision = std::move(decision);
  });
}

std::optional<StepFacts> HookRunner::take_facts() {
  std::optional<StepFacts> facts;
  worker_->run([&] { facts = in_step_ ? std::nullopt : std::exchange(last_facts_, std::nullopt); });
  return facts;
}

}  // namespace q7x2
