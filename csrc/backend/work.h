// WorkQ7x2: one c10d call in progress, made of one or several tasks.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include "backend/tensors.h"
#include "backend/torch_compat.h"
#include "transport/run/runtime.h"
#include "transport/task/task.h"

namespace q7x2 {

/// The inputs of a call, for the event in torch's profiler. Empty unless a profiler is active.
class ProfiledInputs {
 public:
  ProfiledInputs() : ProfiledInputs(std::vector<at::Tensor>()) {}
  ProfiledInputs(std::initializer_list<at::Tensor> inputs)
      : ProfiledInputs(std::vector<at::Tensor>(inputs)) {}
  ProfiledInputs(const std::vector<at::Tensor>& inputs) {  // NOLINT(google-explicit-constructor)
    if (at::hasCallbacks()) tensors_ = inputs;
  }

  const std::optional<std::vector<at::Tensor>>& tensors() const { return tensors_; }

 private:
  std::optional<std::vector<at::Tensor>> tensors_;
};

/// A Work becomes complete in three steps.
/// 1. Its tasks are done (the transport).
/// 2. It is *settled*: results are copied to the caller's tensors, and the profiler's event ends.
///    The first thread that needs it settles it: one in `wait`, or the notifier's.
/// 3. The notifier completes the future, which runs its callbacks, and then runs `on_settled`. A
///    thread in `wait` waits for the future, but not for `on_settled`.
class WorkQ7x2 final : public c10d::Work {
 public:
  WorkQ7x2(std::shared_ptr<Runtime> runtime, int rank, c10d::OpType type, const char* title,
           const ProfiledInputs& inputs, std::vector<std::vector<at::Tensor>> results,
           uint64_t sequence);

  /// Submits `tasks`, which belong to the work from then on. `buffers` are copied back when all
  /// tasks have succeeded. `on_settled` runs once, at the end, on the notifier; its exceptions
  /// become warnings. The work is complete only when the tasks in `after` are done, too.
  void start(std::vector<std::shared_ptr<Task>> tasks, std::shared_ptr<CallBuffers> buffers,
             bool caller_waits, std::function<void(WorkQ7x2&)> on_settled = nullptr,
             std::vector<std::shared_ptr<Task>> after = {});
  /// Makes this the work that is complete when all `parts` are, which have started.
  void start(std::vector<c10::intrusive_ptr<WorkQ7x2>> parts);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  /// The result tensors. If there are several lists of them (all-gather of several tensors), only
  /// the future contains them, as a list of lists.
  std::vector<at::Tensor> result() override;
  void synchronize() override { wait(kNoTimeout); }
  /// For device tensors, makes the current stream wait for the results, and does not block the
  /// host, unless there is a timeout or the host must finish the call. Raises an error that is
  /// known by then; a later error is raised by the next call of the group.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void blockCurrentStream() override { wait(); }
  void abort() override;
  /// Number of leading bytes of the result that are final and may be read. Slices of an all-reduce,
  /// a reduce or a broadcast of one contiguous CPU tensor become final in order. Other results
  /// become final all at once.
  size_t ready_bytes() const;
  /// Waits until at least `bytes` bytes are ready. Throws what `wait` throws.
  void wait_bytes(size_t bytes, std::chrono::milliseconds timeout = kNoTimeout);
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  float getDuration() const override;
  uint64_t getSequencenumber() const override { return sequence_; }

  /// Whether a work that has ended has succeeded.
  bool has_succeeded() { return isCompleted() && isSuccess(); }
  TimePoint submitted() const;
  TimePoint finished() const;

 private:
  bool tasks_done() const;
  /// Null if the tensors are on the CPU.
  DeviceStream* stream() const { return buffers_ ? buffers_->stream() : nullptr; }
  bool is_on_device() const;
  /// Whether the host takes no part after the call: streams order the results.
  bool leaves_host_free() const;
  /// Whether the results are on their device, or will never arrive.
  bool streams_done() const;
  /// A stream on which all results are ready.
  std::optional<c10::Stream> results_stream() const;
  bool is_ready_in_order() const;
  void settle();
  void announce_when_done();
  void announce();
  void complete_future();
  void await_future();
  std::string describe() const;

  const std::shared_ptr<Runtime> runtime_;
  std::vector<std::vector<at::Tensor>> results_;
  const uint64_t sequence_;
  std::vector<std::shared_ptr<Task>> tasks_;
  std::vector<c10::intrusive_ptr<WorkQ7x2>> parts_;
  std::shared_ptr<CallBuffers> buffers_;
  std::function<void(WorkQ7x2&)> on_settled_;

  std::once_flag settle_once_;
  std::atomic<bool> settled_{false};
  // Number of tasks that are not done; at 0 the notifier settles the work.
  std::atomic<size_t> tasks_left_{0};
  std::mutex future_mutex_;        // guards the three members below
  bool announces_itself_ = false;  // whether it is registered with the notifier
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  bool future_completed_ = false;  // whether a thread has begun to complete it
  std::condition_variable future_taken_;
};

/// The exception that Python gets for `error`: a DistBackendError, or, for invalid arguments, the
/// c10::Error that users of other backends know.
std::exception_ptr to_exception(const Error& error);

}  // namespace q7x2
