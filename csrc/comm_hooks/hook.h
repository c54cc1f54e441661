// What a hook is: a coroutine over one bucket, and state that belongs to parameters.
#pragma once

#include <coroutine>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "comm_hooks/phases.h"

namespace q7x2 {

class HookRunner;
struct HookJob;

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

/// Awaited by a hook: a collective in the bucket's next lane.
class PendingCollective {
 public:
  using Start = std::function<c10::intrusive_ptr<c10d::Work>(c10d::ProcessGroup&)>;

  PendingCollective(HookRunner& runner, HookJob& job, Start start, size_t bytes, Rest rest)
      : runner_(runner), job_(job), start_(std::move(start)), bytes_(bytes), rest_(rest) {}

  bool await_ready() const { return false; }
  void await_suspend(std::coroutine_handle<>);
  void await_resume();

 private:
  HookRunner& runner_;
  HookJob& job_;
  Start start_;
  size_t bytes_;
  Rest rest_;
};

/// Adds the CPU time from here to the end of its scope to a phase.
class PhaseTimer {
 public:
  PhaseTimer(HookRunner& runner, const HookJob& job, const char* phase);
  ~PhaseTimer();
  PhaseTimer(const PhaseTimer&) = delete;
  PhaseTimer& operator=(const PhaseTimer&) = delete;

 private:
  HookRunner& runner_;
  const HookJob& job_;
  const char* phase_;
  double cpu_begin_;
  double begin_;
};

/// One of DDP's buckets on its way through a hook. Used in the hook's thread only.
class Bucket {
 public:
  Bucket(HookRunner& runner, HookJob& job) : runner_(runner), job_(job) {}

  size_t index = 0;  ///< in DDP's present order; says nothing about what lies in it
  bool is_last = false;
  uint64_t step = 0;  ///< reductions before this one, skipped ones left out
  at::Tensor buffer;  ///< all gradients, one after the other; the hook leaves their mean in it
  std::vector<Gradient>
      gradients;  ///< in the order of `buffer`; empty ones and sparse ones left out

  /// The sum of `message` over all ranks, in place.
  PendingCollective all_reduce(const at::Tensor& message, Rest rest);
  /// What `start` starts, with messages of `bytes` bytes.
  PendingCollective collective(PendingCollective::Start start, size_t bytes, Rest rest) {
    return PendingCollective(runner_, job_, std::move(start), bytes, rest);
  }
  PhaseTimer time(const char* phase) { return PhaseTimer(runner_, job_, phase); }
  /// A reduced gradient has Inf or NaN, on all ranks: GradScaler will skip this step.
  void overflowed();

 private:
  HookRunner& runner_;
  HookJob& job_;
};

/// What a hook knows of the model and the job.
struct HookContext {
  struct Parameter {
    std::string name;
    std::vector<int64_t> shape;
    at::ScalarType dtype = at::kFloat;
  };

  int world_size = 1;
  std::vector<Parameter> parameters;  ///< grows where DDP reduces one that nobody has named
};

/// The tensors that a hook remembers: state["residual"]["layer.weight"].
using HookState = std::map<std::string, std::map<std::string, at::Tensor>>;

/// One algorithm. All calls come from the hook's thread.
///
/// State is kept by parameter, because DDP lays its buckets out anew after the first step, and it
/// changes at the end of a step only, because a step with Inf or NaN in any bucket must leave no
/// trace. In all that is kept, a gradient is scaled as this rank's contribution to the mean:
/// divided by the number of ranks. The sum of the residuals over ranks is then what the mean still
/// lacks.
class Hook {
 public:
  explicit Hook(const HookContext& context) : context_(context) {}
  virtual ~Hook() = default;
  Hook(const Hook&) = delete;
  Hook& operator=(const Hook&) = delete;

  /// Collectives of a bucket, at most.
  virtual size_t lanes() const { return 1; }
  /// Replaces `bucket.buffer` by its mean over the ranks.
  virtual Phases reduce(Bucket& bucket) = 0;
  /// All buckets of a step are reduced. `keep`: what they leave behind becomes the state.
  virtual void end_step(bool keep) { static_cast<void>(keep); }
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

/// True where no element is Inf or NaN.
bool all_finite(const at::Tensor& tensor);
/// True where every element is 0.
bool all_zero(const at::Tensor& flat);

}  // namespace q7x2
