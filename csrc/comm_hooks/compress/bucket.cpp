// What hooks do with a bucket, except for its collectives.
#include <cmath>

#include "base/error.h"
#include "comm_hooks/run/hook.h"
#include "comm_hooks/run/runner.h"

namespace q7x2 {

bool all_finite(const at::Tensor& tensor) {
  if (tensor.is_sparse()) return all_finite(tensor._values());
  // the host waits for the device once
  if (!tensor.is_cpu()) return tensor.isfinite().all().item<bool>();
  // A sum is one fast pass and usually finite. If it is not, the sum itself may have overflowed.
  return std::isfinite(tensor.sum().item<double>()) || tensor.isfinite().all().item<bool>();
}

bool fits(const at::Tensor& results) {
  return results.scalar_type() != at::kHalf || all_finite(results);
}

void Hook::check(size_t parameter, const ParameterPolicy& policy) const {
  if (!policy.skip && policy.compressor.empty()) return;
  throw Error(ErrorCode::kInvalidArgument,
              "the hook of " + context_.parameters[parameter].name +
                  " compresses nothing: a policy can only leave its gradient whole");
}

HookCollective HookCollective::sum(const at::Tensor& message) {
  return {[message](c10d::ProcessGroup& group) {
            std::vector<at::Tensor> tensors{message};
            return group.allreduce(tensors);
          },
          message.is_sparse() ? 0 : message.nbytes()};
}

PhaseTimer::PhaseTimer(HookRunner& runner, const Bucket& bucket, const char* phase)
    : runner_(runner),
      bucket_(bucket),
      phase_(phase),
      cpu_begin_(thread_cpu_seconds()),
      begin_(monotonic_seconds()) {}

PhaseTimer::~PhaseTimer() {
  runner_.stats_.cpu_seconds[phase_] += thread_cpu_seconds() - cpu_begin_;
  runner_.record({bucket_.step, bucket_.index, phase_, 0, begin_, monotonic_seconds()});
}

void Bucket::overflowed() {
  runner_.overflowed_ = true;
}

void Bucket::note_facts(size_t parameter, GradientFacts facts, const StepTimes& times) {
  runner_.facts_.gradients[parameter] = std::move(facts);
  runner_.facts_.times = times;
}

Bucket Bucket::part(CollectiveSink& sink) const {
  Bucket bucket(runner_, sink);
  bucket.index = index;
  bucket.is_last = is_last;
  bucket.step = step;
  return bucket;
}

}  // namespace q7x2
