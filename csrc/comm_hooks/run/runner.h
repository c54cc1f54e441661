// HookRunner: takes DDP's buckets, and runs a hook over them in its own thread, without the GIL.
//
//   DDP's thread   bucket 0   bucket 1   bucket 2   ... waits for the buckets' futures
//   the worker       encode 0   encode 1   middle 0   encode 2   decode 0   ...
//   lane 0                    P0 ------- P1 ------------------ P2
//   lane 1                                          Q0 ------------- Q1 ...
//
// DDP passes a bucket and continues with backward. The worker resumes any bucket that has something
// to compute, those with a collective ahead first. lanes.h explains why no rank can match another
// one's collective with the wrong one.
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
  /// Threads that still wait for the future get an error.
  ~HookJob() override;

  void start(std::vector<HookCollective> collectives, Rest rest) override;
  void end() override;
  void reduced() override;

  HookRunner& runner;
  Bucket bucket;
  bool is_first = false;    ///< whether it is the first of its step
  bool is_ordered = false;  ///< whether the buckets of a step come in the order of their indices
  Phases phases;
  c10::intrusive_ptr<c10::ivalue::Future> future;
  Lanes::Ticket ticket = 0;
  size_t next_lane = 0;
  std::vector<c10::intrusive_ptr<c10d::Work>> works;  ///< those of the phase that it waits for
  std::exception_ptr start_error;                     ///< set if one of them could not be started
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
    kManyModels,  ///< with a hook without state: each bucket is a step of its own
  };

  /// `groups`: process groups with the same ranks that nothing else uses; at least as many as the
  /// hook has lanes. `threads`: per operation in the worker. `may_skip`: see HookContext.
  /// `without_gil` must call its argument without the GIL, which the caller may hold. The last
  /// reference may be dropped in any thread.
  static std::shared_ptr<HookRunner> make(
      std::vector<ProcessGroupPtr> groups, const std::vector<NamedParameter>& parameters,
      const MakeHook& make_hook, int threads, Serves serves, bool may_skip,
      std::function<void(const std::function<void()>&)> without_gil);
  ~HookRunner();

  /// DDP may leave out buckets that no rank uses, even the first and the last: so a step ends with
  /// the backward. To be called before the first bucket.
  void expect_fewer_buckets();
  /// Called in DDP's thread. Returns at once; the future holds `bucket`'s buffer.
  c10::intrusive_ptr<c10::ivalue::Future> reduce(c10d::GradBucket& bucket);
  /// The same without DDP: `buffer` (one dimension, contiguous) holds the gradients of
  /// `parameters`, which are numbers of the named ones, one after the other. `index` is the
  /// bucket's. After the last one of a step, call `end_reductions`.
  c10::intrusive_ptr<c10::ivalue::Future> reduce(size_t index,
                                                 const std::vector<size_t>& parameters,
                                                 const at::Tensor& buffer, bool is_first);
  /// All gradients of the step have been reduced.
  void end_reductions();

  // To be called between steps, from any thread; during a step they throw Error(kInvalidArgument).
  /// Number of reductions so far.
  uint64_t step();
  /// From now on reduces without compression.
  void detach();
  void rescale(double factor);
  void save(HookState& shared, HookState& local, uint64_t& step);
  void load(const HookState& shared, const HookState& local, uint64_t step);

  /// Applies from the next step on; must be equal on all ranks. Throws Error(kInvalidArgument) for
  /// what the hook does not support; then nothing has changed.
  void decide(Decision decision);
  /// The facts of the last step; empty if no step has ended since the last call. At any time.
  std::optional<StepFacts> take_facts();

  HookStats stats();
  /// From now on records the work of the worker and the lanes.
  void trace(bool enabled);
  /// What has been recorded since the last call.
  std::vector<HookEvent> take_events();

 private:
  friend struct HookJob;
  friend class Bucket;
  friend class PhaseTimer;

  HookRunner(std::vector<ProcessGroupPtr> groups, int threads, Serves serves,
             std::function<void(const std::function<void()>&)> without_gil);

  // Used only in the worker's thread, except `hand_over`.
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
  /// The worker's stream waits for the work that the calling thread's stream now has. Any thread.
  void follow_caller();
  void record(HookEvent event);

  const std::vector<ProcessGroupPtr> groups_;
  const Serves serves_;
  std::vector<at::Tensor> given_;  // the named parameters
  /// A device stream, on which all of the worker's operations run in order; created for its first
  /// bucket.
  std::optional<c10::Stream> stream_;
  const std::function<void(const std::function<void()>&)> without_gil_;

  HookContext context_;
  // Keep the addresses that are keys of numbers_ valid, without keeping the parameters' memory.
  std::vector<c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>> parameters_;
  std::unordered_map<const void*, size_t> numbers_;
  std::unique_ptr<Hook> hook_;
  Lanes lanes_;
  std::unordered_map<Lanes::Ticket, std::shared_ptr<HookJob>> jobs_;
  uint64_t step_ = 0;
  bool in_step_ = false;  // its first bucket has arrived, its end has not
  bool last_bucket_came_ = false;
  bool backward_ended_ = false;
  bool buckets_may_be_missing_ = false;
  size_t last_index_ = 0;    // index of the last bucket
  int awaited_ = -1;         // the backward whose end will be reported; used in DDP's thread
  bool overflowed_ = false;  // whether this step has
  std::exception_ptr failure_;

  StepFacts facts_;                      // for the step in flight
  std::optional<StepFacts> last_facts_;  // for the last step
  double step_begin_ = 0;                // seconds of the monotonic clock
  double wire_begin_ = 0;
  size_t under_way_ = 0;     // number of rounds of collectives in flight
  double wire_seconds_ = 0;  // seconds of the step in flight with a round in flight

  HookStats stats_;
  bool tracing_ = false;
  std::vector<HookEvent> events_;

  const std::shared_ptr<Worker> worker_;  // also owned by collectives in flight
};

}  // namespace q7x2
