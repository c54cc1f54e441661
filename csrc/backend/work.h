// WorkQ7x2: one c10d call in progress, made of one task or several.
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

/// The inputs of a call, for the event that torch's profiler gets of it. Holds nothing, and there
/// is no event, while nobody listens.
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

/// Becomes complete in three steps.
/// 1. Its tasks are done (the transport).
/// 2. It is *settled*: results are copied to where the caller wants them, the profiler's event
///    ends. Whoever needs it first settles it, a thread in `wait` or the notifier.
/// 3. The notifier completes the future, which runs what users attached to it, and then runs
///    `on_settled`. A thread in `wait` sees the future complete and waits for no more than that.
class WorkQ7x2 final : public c10d::Work {
 public:
  WorkQ7x2(std::shared_ptr<Runtime> runtime, int rank, c10d::OpType type, const char* title,
           const ProfiledInputs& inputs, std::vector<std::vector<at::Tensor>> results,
           uint64_t sequence);

  /// Submits `tasks`; the work is theirs from then on. `buffers` are copied back when all
  /// succeeded. `on_settled` runs once, at the end, on the notifier; what it throws becomes a
  /// warning. The work is complete when those in `after` are, too.
  void start(std::vector<std::shared_ptr<Task>> tasks, std::shared_ptr<HostBuffers> buffers,
             bool caller_waits, std::function<void(WorkQ7x2&)> on_settled = nullptr,
             std::vector<std::shared_ptr<Task>> after = {});
  /// A work that is the sum of others, which have started.
  void start(std::vector<c10::intrusive_ptr<WorkQ7x2>> parts);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  /// The result tensors. Where there are several lists of them (all-gather of several tensors) only
  /// the future holds them, as a list of lists.
  std::vector<at::Tensor> result() override;
  void synchronize() override { wait(kNoTimeout); }
  /// Tensors on a device: the current stream waits for the results, and the host goes on, unless
  /// there is a timeout or the host itself has to finish the call. What went wrong is raised if it
  /// is known by then; if not, the next call of the group raises it.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void blockCurrentStream() override { wait(); }
  void abort() override;
  /// How many bytes from the beginning of the result are final and may be read: pieces of an
  /// all-reduce, a reduce or a broadcast of one contiguous CPU tensor become so in their order.
  /// Other results all at once.
  size_t ready_bytes() const;
  /// Waits until so many are. Throws what `wait` throws.
  void wait_bytes(size_t bytes, std::chrono::milliseconds timeout = kNoTimeout);
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  float getDuration() const override;
  uint64_t getSequencenumber() const override { return sequence_; }

  /// Of an operation that has ended: that it succeeded.
  bool has_succeeded() { return isCompleted() && isSuccess(); }
  TimePoint submitted() const;
  TimePoint finished() const;

 private:
  bool tasks_done() const;
  /// Null: the tensors are on the CPU.
  DeviceStream* stream() const { return buffers_ ? buffers_->stream() : nullptr; }
  bool is_on_device() const;
  /// Whether streams alone order the results after the call.
  bool leaves_host_free() const;
  /// The results are on their device, or what was to come there never will.
  bool streams_done() const;
  /// On which all results are ready.
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
  std::shared_ptr<HostBuffers> buffers_;
  std::function<void(WorkQ7x2&)> on_settled_;

  std::once_flag settle_once_;
  std::atomic<bool> settled_{false};
  std::atomic<size_t> tasks_left_{0};  // before the notifier settles it
  std::mutex future_mutex_;            // guards the next three
  bool announces_itself_ = false;      // registered with the notifier
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  bool future_completed_ = false;  // by someone
  std::condition_variable future_taken_;
};

/// What Python gets to see of `error`: a DistBackendError, or for bad arguments the c10::Error that
/// users of other backends know.
std::exception_ptr to_exception(const Error& error);

}  // namespace q7x2
