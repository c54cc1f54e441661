// The decisions of policies, and the facts that they get.
#include <utility>

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
