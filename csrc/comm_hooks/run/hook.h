// What a hook is: a coroutine over one bucket, and state that belongs to parameters.
#pragma once

#include <coroutine>
#include <functional>
#include <map>
#include <memory>
#include <optional>
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

/// What is left of a bucket behind a collective.
enum class Rest {
  kCollectives,  ///< at least one more collective: what leads to it comes first
  kNone,
};

/// A collective to be started in a group of its lane's.
struct HookCollective {
  using Start = std::function<c10::intrusive_ptr<c10d::Work>(c10d::ProcessGroup&)>;

  Start start;
  size_t bytes = 0;  ///< of what this rank gives to it; of a selection about as many

  /// The sum of `message` over all ranks, in place.
  static HookCollective sum(const at::Tensor& message);
};

/// Where a bucket's collectives go.
class CollectiveSink {
 public:
  virtual ~CollectiveSink() = default;
  /// The bucket's mean is there; nobody waits for that of a part.
  virtual void reduced() {}
  /// Starts them, in the bucket's next lane, and resumes the bucket's coroutine when all are over.
  virtual void start(std::vector<HookCollective> collectives, Rest rest) = 0;
  /// Called by the coroutine then. Throws what went wrong.
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

/// Adds the CPU time from here to the end of its scope to a phase.
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

/// One of DDP's buckets on its way through a hook. Used in the hook's thread only.
class Bucket {
 public:
  Bucket(HookRunner& runner, CollectiveSink& sink) : runner_(runner), sink_(&sink) {}

  size_t index = 0;  ///< in DDP's present order; says nothing about what lies in it
  bool is_last = false;
  uint64_t step = 0;  ///< reductions before this one
  at::Tensor buffer;  ///< all gradients, one after the other; the hook leaves their mean in it
  std::vector<Gradient>
      gradients;  ///< in the order of `buffer`; empty ones and sparse ones left out

  /// The sum of `message` over all ranks, in place.
  PendingCollectives all_reduce(const at::Tensor& message, Rest rest) {
    return all({HookCollective::sum(message)}, rest);
  }
  PendingCollectives all(std::vector<HookCollective> collectives, Rest rest) {
    return PendingCollectives(*sink_, std::move(collectives), rest);
  }
  PhaseTimer time(const char* phase) const { return PhaseTimer(runner_, *this, phase); }
  /// The mean is in `buffer`, which belongs to DDP from now on: what a hook does after this runs
  /// beside the optimizer. At the coroutine's end at the latest.
  void reduced() { sink_->reduced(); }
  /// A reduced gradient has Inf or NaN, on all ranks: GradScaler will skip this step.
  void overflowed();
  /// What all ranks together have measured; policies get it when the step is over.
  void note_facts(size_t parameter, GradientFacts facts, const StepTimes& times);
  /// A bucket of the same step, empty, whose collectives go to `sink`.
  Bucket part(CollectiveSink& sink) const;

 private:
  HookRunner& runner_;
  CollectiveSink* sink_;
};

/// What a hook knows of the model and the job.
struct HookContext {
  struct Parameter {
    std::string name;
    std::vector<int64_t> shape;
    at::ScalarType dtype = at::kFloat;
  };

  int rank = 0;
  int world_size = 1;
  /// A gradient scaler skips steps: what a step changes must be undone exactly.
  bool may_skip = false;
  std::vector<Parameter> parameters;  ///< grows where DDP reduces one that nobody has named
  Decision decision;                  ///< of policies; it changes between steps only
  StepTimes last_step;
};

/// The tensors that a hook remembers: state["residual"]["layer.weight"].
using HookState = std::map<std::string, std::map<std::string, at::Tensor>>;

/// What remembers something from step to step: a hook, or the compressor of one.
///
/// State is kept by parameter, because DDP lays its buckets out anew after the first step. A step
/// is a transaction, because one with Inf or NaN in any bucket, or with a collective that fails,
/// must leave no trace: after its buckets comes `commit` or `abort`. In all that is kept, a
/// gradient is scaled as this rank's contribution to the mean: divided by the number of ranks. The
/// sum of the residuals over ranks is then what the mean still lacks.
class Stateful {
 public:
  explicit Stateful(const HookContext& context) : context_(context) {}
  virtual ~Stateful() = default;
  Stateful(const Stateful&) = delete;
  Stateful& operator=(const Stateful&) = delete;

  /// All buckets of a step are reduced: what they leave behind becomes the state.
  virtual void commit() {}
  /// The step has not happened. Collectives that failed may still write into its tensors.
  virtual void abort() {}
  /// Gradients are `factor` times as large from the next step on.
  virtual void rescale(double factor) { static_cast<void>(factor); }
  /// Copies, between steps. Equal on all ranks: what is in `shared`. This rank's own: `local`.
  virtual void save(HookState& shared, HookState& local) const {
    static_cast<void>(shared);
    static_cast<void>(local);
  }
  /// Takes over what `save` gave; absent tensors are as in a hook that has not run. Throws
  /// Error(kInvalidArgument) for tensors that do not fit, and has then changed nothing.
  virtual void load(const HookState& shared, const HookState& local) {
    static_cast<void>(shared);
    static_cast<void>(local);
  }

 protected:
  const HookContext& context_;
};

/// One algorithm. All calls come from the hook's thread.
class Hook : public Stateful {
 public:
  using Stateful::Stateful;

  /// Collectives of a bucket, at most.
  virtual size_t lanes() const { return 1; }
  /// Replaces `bucket.buffer` by its mean over the ranks.
  virtual Phases reduce(Bucket& bucket) = 0;
  /// Throws Error(kInvalidArgument) for a policy that the hook cannot give this parameter.
  virtual void check(size_t parameter, const ParameterPolicy& policy) const;
};

using MakeHook = std::function<std::unique_ptr<Hook>(const HookContext&)>;

/// True where no element is Inf or NaN; `tensor` may be sparse.
bool all_finite(const at::Tensor& tensor);
/// Whether results that were finite in fp32 still are: fp16 may be too narrow for them.
bool fits(const at::Tensor& results);

}  // namespace q7x2
