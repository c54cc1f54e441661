// HookRunner: takes DDP's buckets, runs a hook over them in a thread of its own, without the GIL.
//
//   DDP's thread   bucket 0   bucket 1   bucket 2   ... waits for the buckets' futures
//   the worker       encode 0   encode 1   middle 0   encode 2   decode 0   ...
//   lane 0                    P0 ------- P1 ------------------ P2
//   lane 1                                          Q0 ------------- Q1 ...
//
// DDP hands a bucket over and goes on with backward. The worker resumes whichever bucket has
// something to compute, those with a collective ahead of them first. See lanes.h for why no rank
// can meet another's collective with the wrong one.
#pragma once

#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include <c10/core/Stream.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include "comm_hooks/run/hook.h"
#include "comm_hooks/run/lanes.h"
#include "comm_hooks/run/stats.h"
#include "comm_hooks/run/worker.h"

namespace q7x2 {

using ProcessGroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

/// A bucket in flight.
struct HookJob final : CollectiveSink {
  explicit HookJob(HookRunner& owner) : runner(owner), bucket(owner, *this) {}
  /// Whoever still waits for the future gets an error.
  ~HookJob() override;

  void start(std::vector<HookCollective> collectives, Rest rest) override;
  void end() override;
  void reduced() override;

  HookRunner& runner;
  Bucket bucket;
  bool is_first = false;    ///< of its step
  bool is_ordered = false;  ///< those of a step come in the order of their indices
  Phases phases;
  c10::intrusive_ptr<c10::ivalue::Future> future;
  Lanes::Ticket ticket = 0;
  size_t next_lane = 0;
  std::vector<c10::intrusive_ptr<c10d::Work>> works;  ///< of the phase it waits for
  std::exception_ptr start_error;                     ///< one of them could not be started
  double collectives_begin = 0;
};

class HookRunner {
 public:
  struct NamedParameter {
    std::string name;
    at::Tensor tensor;
  };

  enum class Serves {
    kOneModel,
    kManyModels,  ///< with a hook that keeps nothing: each bucket is a step of its own
  };

  /// `groups`: process groups of the same ranks, which nothing else uses; at least as many as the
  /// hook has lanes. `threads`: of each operation in the worker. `may_skip`: see HookContext.
  /// `without_gil` calls its argument
  /// where the caller may hold the GIL and must not. The last reference may be dropped in any
  /// thread.
  static std::shared_ptr<HookRunner> make(
      std::vector<ProcessGroupPtr> groups, const std::vector<NamedParameter>& parameters,
      const MakeHook& make_hook, int threads, Serves serves, bool may_skip,
      std::function<void(const std::function<void()>&)> without_gil);
  ~HookRunner();

  /// DDP may leave out buckets that no rank uses, the first and the last among them: a step is over
  /// when backward is. Before the first bucket.
  void expect_fewer_buckets();
  /// DDP's thread. Returns at once; the future holds `bucket`'s buffer.
  c10::intrusive_ptr<c10::ivalue::Future> reduce(c10d::GradBucket& bucket);
  /// The same without DDP: `gradient`, of one dimension and contiguous, of the parameter `index`.
  /// `end_reductions` follows the last one of a step.
  c10::intrusive_ptr<c10::ivalue::Future> reduce(size_t index, const at::Tensor& gradient,
                                                 bool is_first);
  /// All gradients of the step have been reduced.
  void end_reductions();

  // Between steps, from any thread; they throw Error(kInvalidArgument) within one.
  /// Reductions so far.
  uint64_t step();
  /// Reduces densely from now on.
  void detach();
  void rescale(double factor);
  void save(HookState& shared, HookState& local, uint64_t& step);
  void load(const HookState& shared, const HookState& local, uint64_t step);

  /// What holds from the next step on, equal on all ranks. Throws Error(kInvalidArgument) for what
  /// the hook cannot do, and has then changed nothing.
  void decide(Decision decision);
  /// Of the last step; none if no step has ended since the last call. Any time.
  std::optional<StepFacts> take_facts();

  HookStats stats();
  /// Records what the worker and the lanes do, from now on.
  void trace(bool enabled);
  /// What has been recorded since the last call.
  std::vector<HookEvent> take_events();

 private:
  friend struct HookJob;
  friend class Bucket;
  friend class PhaseTimer;

  HookRunner(std::vector<ProcessGroupPtr> groups, int threads, Serves serves,
             std::function<void(const std::function<void()>&)> without_gil);

  // The worker's thread from here on, but for `hand_over`.
  size_t number_of(const at::Tensor& parameter);
  c10::intrusive_ptr<c10::ivalue::Future> hand_over(const std::shared_ptr<HookJob>& job,
                                                    std::vector<at::Tensor> parameters);
  void begin(const std::shared_ptr<HookJob>& job, const std::vector<at::Tensor>& parameters);
  void resume(const std::shared_ptr<HookJob>& job);
  void finish(HookJob& job);
  void fail(HookJob& job, std::exception_ptr error);
  void start_collectives(HookJob& job, std::vector<HookCollective> collectives, Rest rest);
  void end_collectives(HookJob& job);
  void await_end_of_backward();
  bool begins_another_step(const HookJob& job) const;
  bool is_step_over() const;
  void begin_step();
  void end_step();
  void between_steps(const std::function<void()>& task);
  /// The worker's stream waits for what the calling thread's has to do now. Any thread.
  void follow_caller();
  void record(HookEvent event);

  const std::vector<ProcessGroupPtr> groups_;
  const Serves serves_;
  std::vector<at::Tensor> given_;  // the named parameters
  /// Of a device, in which all of the worker's operations come in order; made for its first bucket.
  std::optional<c10::Stream> stream_;
  const std::function<void(const std::function<void()>&)> without_gil_;

  HookContext context_;
  // Keep the addresses that are keys of numbers_, and nothing else of the parameters.
  std::vector<c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>> parameters_;
  std::unordered_map<const void*, size_t> numbers_;
  std::unique_ptr<Hook> hook_;
  Lanes lanes_;
  std::unordered_map<Lanes::Ticket, std::shared_ptr<HookJob>> jobs_;
  uint64_t step_ = 0;
  bool in_step_ = false;  // its first bucket has come, its end has not
  bool last_bucket_came_ = false;
  bool backward_ended_ = false;
  bool buckets_may_be_missing_ = false;
  size_t last_index_ = 0;    // of the bucket that came last
  int awaited_ = -1;         // the backward whose end will be told; in DDP's thread
  bool overflowed_ = false;  // in this step
  std::exception_ptr failure_;

  StepFacts facts_;                      // of the step in flight
  std::optional<StepFacts> last_facts_;  // of the last one
  double step_begin_ = 0;                // seconds of the monotonic clock
  double wire_begin_ = 0;
  size_t under_way_ = 0;     // rounds of collectives
  double wire_seconds_ = 0;  // of the step in flight, with a round under way

  HookStats stats_;
  bool tracing_ = false;
  std::vector<HookEvent> events_;

  const std::shared_ptr<Worker> worker_;  // shared with collectives in flight
};

}  // namespace q7x2
