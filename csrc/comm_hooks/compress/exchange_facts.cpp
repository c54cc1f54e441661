#include "comm_hooks/compress/exchange_facts.h"

#include <utility>

#include "comm_hooks/compress/held_state.h"

namespace q7x2 {

void measure_exchange(BucketExchange& exchange, const BucketExchange* left_out,
                      const HookContext& context, double scale) {
  std::vector<FactSource> sources;
  for (const BucketExchange* part : {&std::as_const(exchange), left_out}) {
    if (part == nullptr) continue;
    for (size_t i = 0; i < part->coded.size(); ++i) {
      FactSource& source = sources.emplace_back();
      source.gradient = part->gradient(i).flat;
      source.sent = part->source(i);
      if (part->has_residual) source.residual = part->memory->now_of(kResidual, i);
    }
  }
  if (sources.empty()) return;
  const PhaseTimer timer = exchange.bucket.time("measure");
  exchange.facts =
      measure_facts(sources, context.decision, context.last_step, exchange.share, scale);
}

void note_facts(const BucketExchange& exchange, const std::vector<size_t>& left_out,
                const HookContext& context) {
  if (!exchange.facts.defined()) return;
  std::vector<size_t> positions = exchange.coded;
  positions.insert(positions.end(), left_out.begin(), left_out.end());
  StepTimes times;
  auto facts =
      read_facts(exchange.facts, positions.size(), context.decision, context.world_size, times);
  for (size_t i = 0; i < positions.size(); ++i) {
    const size_t parameter = exchange.bucket.gradients[positions[i]].parameter;
    exchange.bucket.note_facts(parameter, std::move(facts[i]), times);
  }
}

void leave_out(const BucketExchange& left_out, const Decision& decision,
               std::vector<size_t>& whole) {
  for (size_t i = 0; i < left_out.coded.size(); ++i) {
    const Gradient& gradient = left_out.gradient(i);
    const bool skips = decision.of(gradient.parameter).skip;
    const at::Tensor source = left_out.source(i);
    if (left_out.has_residual) {
      const at::Tensor now = left_out.memory->now_of(kResidual, i);
      at::Tensor next = left_out.memory->next_of(kResidual, i);
      if (left_out.idle[i]) {
        next.zero_();  // its residual is restored after the step
      } else if (skips) {
        next.copy_(now + source.nan_to_num(0, 0, 0));
      } else {
        source.add_(now);
        next.zero_();
      }
    }
    if (skips) {
      gradient.flat.zero_();
    } else {
      if (left_out.values.defined()) gradient.flat.copy_(source);
      whole.push_back(left_out.coded[i]);
    }
  }
}

}  // namespace q7x2
