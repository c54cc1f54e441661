// Hook: a coroutine over one bucket, and state that belongs to parameters.
#pragma once

#include <coroutine>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "comm_hooks/run/facts.h"
#include "comm_hooks/run/parameter_policy.h"
#include "comm_hooks/run/phases.h"

namespace q7x2 {

class Bucket;
class HookRunner;

/// One gradient of a bucket.
struct Gradient {
  size_t parameter = 0;  ///< its number; see `HookContext::parameters`
  at::Tensor flat;       ///< one dimension; a view of the bucket's buffer
};

/// What a bucket does after a collective.
enum class Rest {
  kCollectives,  ///< at least one more collective; the work before it is urgent
  kNone,
};

/// A collective to be started in the group of its lane.
struct HookCollective {
  using Start = std::function<c10::intrusive_ptr<c10d::Work>(c10d::ProcessGroup&)>;

  Start start;
  size_t bytes = 0;  ///< size of this rank's input; approximate for a selection

  /// The sum of `message` over all ranks, in place.
  static HookCollective sum(const at::Tensor& message);
};

/// The receiver of a bucket's collectives.
class CollectiveSink {
 public:
  virtual ~CollectiveSink() = default;
  /// The bucket's mean is complete. Ignored for a part of a bucket.
  virtual void reduced() {}
  /// Starts them in the bucket's next lane, and resumes the bucket's coroutine when all are
  /// complete.
  virtual void start(std::vector<HookCollective> collectives, Rest rest) = 0;
  /// Called by the coroutine afterwards. Throws the error of a collective that failed.
  virtual void end() = 0;
};

/// Awaited by a hook: collectives that start together.
class PendingCollectives {
 public:
  PendingCollectives(CollectiveSink& sink, std::vector<HookCollective> collectives, Rest rest)
      : sink_(sink), collectives_(std::move(collectives)), rest_(rest) {}

  bool await_ready() const { return collectives_.empty(); }
  void await_suspend(std::coroutine_handle<>) {
    started_ = true;
    sink_.start(std::move(collectives_), rest_);
  }
  void await_resume() {
    if (started_) sink_.end();
  }

 private:
  CollectiveSink& sink_;
  std::vector<HookCollective> collectives_;
  Rest rest_;
  bool started_ = false;
};

/// Adds the CPU time until the end of its scope to a phase.
class PhaseTimer {
 public:
  PhaseTimer(HookRunner& runner, const Bucket& bucket, const char* phase);
  ~PhaseTimer();
  PhaseTimer(const PhaseTimer&) = delete;
  PhaseTimer& operator=(const PhaseTimer&) = delete;

 private:
  HookRunner& runner_;
  const Bucket& bucket_;
  const char* phase_;
  double cpu_begin_;
  double begin_;
};

/// One of DDP's buckets while a hook processes it. Used only in the hook's thread.
class Bucket {
 public:
  Bucket(HookRunner& runner, CollectiveSink& sink) : runner_(runner), sink_(&sink) {}

  size_t index = 0;  ///< in DDP's current order; does not identify its contents
  bool is_last = false;
  uint64_t step = 0;  ///< number of reductions before this one
  at::Tensor buffer;  ///< all gradients, one after the other; the hook replaces them by their mean
  std::vector<Gradient> gradients;  ///< in the order of `buffer`, without empty and sparse ones

  /// The sum of `message` over all ranks, in place.
  PendingCollectives all_reduce(const at::Tensor& message, Rest rest) {
    return all({HookCollective::sum(message)}, rest);
  }
  PendingCollectives all(std::vector<HookCollective> collectives, Rest rest) {
    return PendingCollectives(*sink_, std::move(collectives), rest);
  }
  PhaseTimer time(const char* phase) const { return PhaseTimer(runner_, *this, phase); }
  /// The mean is in `buffer`, which belongs to DDP from now on: what a hook does after this runs in
  /// parallel with the optimizer. Called at the latest at the end of the coroutine.
  void reduced() { sink_->reduced(); }
  /// A reduced gradient has Inf or NaN, on all ranks: GradScaler will skip this step.
  void overflowed();
  /// Sums of what the ranks have measured; policies get them when the step has ended.
  void note_facts(size_t parameter, GradientFacts facts, const StepTimes& times);
  /// An empty bucket of the same step, whose collectives go to `sink`.
  Bucket part(CollectiveSink& sink) const;

 private:
  HookRunner& runner_;
  CollectiveSink* sink_;
};

/// What a hook knows about the model and the job.
struct HookContext {
  struct Parameter {
    std::string name;
    std::vector<int64_t> shape;
    at::ScalarType dtype = at::kFloat;
  };

  int rank = 0;
  int world_size = 1;
  /// Whether a gradient scaler may skip steps: then the effects of a step must be undone exactly.
  bool may_skip = false;
  std::vector<Parameter> parameters;  ///< grows if DDP reduces one that was not named
  Decision decision;                  ///< that of policies; changes only between steps
  StepTimes last_step;
};

/// The tensors of a hook's state: state["residual"]["layer.weight"].
using HookState = std::map<std::string, std::map<std::string, at::Tensor>>;

/// Something with state from step to step: a hook, or the compressor of one.
///
/// State is kept by parameter, because DDP rebuilds its buckets after the first step. A step is a
/// transaction, because a step with Inf or NaN in any bucket, or with a collective that fails, must
/// not change the state: after its buckets `commit` or `abort` is called. In all state, a gradient
/// is scaled as this rank's contribution to the mean: divided by the number of ranks. So the sum of
/// the residuals over the ranks is what the mean still lacks.
class Stateful {
 public:
  explicit Stateful(const HookContext& context) : context_(context) {}
  virtual ~Stateful() = default;
  Stateful(const Stateful&) = delete;
  Stateful& operator=(const Stateful&) = delete;

  /// All buckets of a step are reduced: adopts the new state.
  virtual void commit() {}
  /// The step is undone. Collectives that failed may still write to its tensors.
  virtual void abort() {}
  /// From the next step on gradients are `factor` times as large.
  virtual void rescale(double factor) { static_cast<void>(factor); }
  /// Copies the state, between steps: to `shared` what is equal on all ranks, to `local` this
  /// rank's own.
  virtual void save(HookState& shared, HookState& local) const {
    static_cast<void>(shared);
    static_cast<void>(local);
  }
  /// Loads the result of `save`; missing tensors get the state of a new hook. Throws
  /// Error(kInvalidArgument) for tensors that do not fit; then nothing has changed.
  virtual void load(const HookState& shared, const HookState& local) {
    static_cast<void>(shared);
    static_cast<void>(local);
  }

 protected:
  const HookContext& context_;
};

/// One algorithm. All functions are called in the hook's thread.
class Hook : public Stateful {
 public:
  using Stateful::Stateful;

  /// Maximum number of collectives per bucket.
  virtual size_t lanes() const { return 1; }
  /// Replaces `bucket.buffer` by its mean over the ranks.
  virtual Phases reduce(Bucket& bucket) = 0;
  /// Throws Error(kInvalidArgument) for a policy that the hook does not support for this parameter.
  virtual void check(size_t parameter, const ParameterPolicy& policy) const;
};

using MakeHook = std::function<std::unique_ptr<Hook>(const HookContext&)>;

/// Whether no element is Inf or NaN; `tensor` may be sparse.
bool all_finite(const at::Tensor& tensor);
/// Whether results that are finite in fp32 are finite in their own type: fp16 may be too narrow.
bool fits(const at::Tensor& results);

}  // namespace q7x2
