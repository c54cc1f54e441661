#include "backend/work.h"

#include <algorithm>
#include <utility>

#include <c10/core/StreamGuard.h>

#include "executor/collective/message.h"

namespace q7x2 {
namespace {

// How long a waiter waits until the notifier has completed the future. If all threads of the
// notifier are in callbacks that do not return, the waiter then completes the future, and runs its
// callbacks.
constexpr std::chrono::seconds kNotifierPatience{1};

}  // namespace

std::exception_ptr to_exception(const Error& error) {
  const c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  if (error.code() == ErrorCode::kInvalidArgument) {
    return std::make_exception_ptr(c10::Error(here, error.what()));
  }
  return std::make_exception_ptr(c10::DistBackendError(here, error.what()));
}

WorkQ7x2::WorkQ7x2(std::shared_ptr<Runtime> runtime, int rank, c10d::OpType type, const char* title,
                   const ProfiledInputs& inputs, std::vector<std::vector<at::Tensor>> results,
                   uint64_t sequence)
    : c10d::Work(rank, type, inputs.tensors() ? title : nullptr, inputs.tensors()),
      runtime_(std::move(runtime)),
      results_(std::move(results)),
      sequence_(sequence) {}

void WorkQ7x2::start(std::vector<std::shared_ptr<Task>> tasks, std::shared_ptr<CallBuffers> buffers,
                     bool caller_waits, std::function<void(WorkQ7x2&)> on_settled,
                     std::vector<std::shared_ptr<Task>> after) {
  tasks_ = std::move(tasks);
  buffers_ = std::move(buffers);
  on_settled_ = std::move(on_settled);
  for (const auto& task : tasks_) {
    runtime_->submit(task, caller_waits);
  }
  tasks_.insert(tasks_.end(), after.begin(), after.end());
  // These steps are necessary even if nobody waits for the work.
  if (on_settled_ || recordFunctionEndCallback_ || buffers_->has_copies() || stream() != nullptr) {
    announce_when_done();
  }
}

void WorkQ7x2::start(std::vector<c10::intrusive_ptr<WorkQ7x2>> parts) {
  parts_ = std::move(parts);
  results_.resize(1);
  for (const auto& part : parts_) {
    tasks_.insert(tasks_.end(), part->tasks_.begin(), part->tasks_.end());
    for (const auto& list : part->results_) {
      results_[0].insert(results_[0].end(), list.begin(), list.end());
    }
  }
}

bool WorkQ7x2::tasks_done() const {
  return std::all_of(tasks_.begin(), tasks_.end(), [](const auto& task) { return task->done(); });
}

std::vector<at::Tensor> WorkQ7x2::result() {
  TORCH_CHECK(results_.size() <= 1,
              "work result does not support list of lists, use .getFuture() and value()");
  return results_.empty() ? std::vector<at::Tensor>() : results_[0];
}

bool WorkQ7x2::isCompleted() {
  runtime_->enter();
  if (!tasks_done()) {
    return false;
  }
  settle();
  await_future();
  return streams_done();
}

bool WorkQ7x2::is_on_device() const {
  return stream() != nullptr || std::any_of(parts_.begin(), parts_.end(),
                                            [](const auto& part) { return part->is_on_device(); });
}

bool WorkQ7x2::leaves_host_free() const {
  return stream() != nullptr && !buffers_->has_copies();
}

bool WorkQ7x2::streams_done() const {
  return (stream() == nullptr || stream()->is_done()) &&
         std::all_of(parts_.begin(), parts_.end(),
                     [](const auto& part) { return part->streams_done(); });
}

bool WorkQ7x2::isSuccess() const {
  return settled_ && exception_ == nullptr;
}

std::exception_ptr WorkQ7x2::exception() const {
  return settled_ ? exception_ : nullptr;
}

int WorkQ7x2::sourceRank() const {
  const auto* message =
      tasks_.size() == 1 ? dynamic_cast<const MessageTask*>(tasks_[0].get()) : nullptr;
  TORCH_CHECK(message != nullptr && message->done(),
              "sourceRank() may only be called on a completed recv or recv-from-any");
  return message->source();
}

bool WorkQ7x2::wait(std::chrono::milliseconds timeout) {
  runtime_->enter();
  const StayIfEnding stay;
  if (!parts_.empty() && is_on_device()) {
    for (const auto& part : parts_) part->wait(timeout);
    return true;
  }
  if (leaves_host_free() && timeout <= kNoTimeout && !tasks_done()) {
    stream()->block_current();
    return true;
  }
  const TimePoint deadline = timeout > kNoTimeout ? Clock::now() + timeout : TimePoint::max();
  for (const auto& task : tasks_) {
    if (!runtime_->wait(*task, deadline)) {
      std::rethrow_exception(to_exception(
          Error(ErrorCode::kTimeout, task->name() + ": Timed out after waiting " +
                                         std::to_string(timeout.count()) + " ms; it goes on")));
    }
  }
  settle();
  await_future();
  if (exception_ != nullptr) {
    std::rethrow_exception(exception_);
  }
  if (stream() != nullptr) stream()->block_current();
  return true;
}

bool WorkQ7x2::is_ready_in_order() const {
  return tasks_.size() == 1 && parts_.empty() && stream() == nullptr &&
         !(buffers_ && buffers_->has_copies());
}

size_t WorkQ7x2::ready_bytes() const {
  if (settled_) {
    return exception_ == nullptr ? Runtime::kAll : 0;
  }
  return is_ready_in_order() ? tasks_[0]->ready_bytes() : 0;
}

void WorkQ7x2::wait_bytes(size_t bytes, std::chrono::milliseconds timeout) {
  const TimePoint deadline = timeout > kNoTimeout ? Clock::now() + timeout : TimePoint::max();
  if (!is_ready_in_order() || (runtime_->wait(*tasks_[0], deadline, bytes) && tasks_[0]->done())) {
    wait(timeout);
  } else if (tasks_[0]->ready_bytes() < bytes) {
    std::rethrow_exception(to_exception(
        Error(ErrorCode::kTimeout, tasks_[0]->name() + ": Timed out after waiting " +
                                       std::to_string(timeout.count()) + " ms for " +
                                       std::to_string(bytes) + " bytes of the result")));
  }
}

void WorkQ7x2::abort() {
  const auto task =
      std::ranges::find_if(tasks_, [](const auto& each) { return !each->is_attempt(); });
  if (task != tasks_.end()) {
    (*task)->group().abort(Error(ErrorCode::kAborted, "aborted by the caller"));
  }
}

void WorkQ7x2::settle() {
  std::call_once(settle_once_, [this] {
    for (const auto& part : parts_) {
      part->settle();
    }
    for (const auto& task : tasks_) {
      if (task->error() && !task->is_attempt() && exception_ == nullptr) {
        exception_ = to_exception(*task->error());
      }
    }
    // In any case, streams that wait for the call continue.
    if (stream() != nullptr) stream()->open();
    if (exception_ == nullptr && buffers_) {
      try {
        buffers_->copy_back();
      } catch (...) {
        exception_ = std::current_exception();
      }
    }
    if (recordFunctionEndCallback_) {
      try {
        recordFunctionEndCallback_();
      } catch (const std::exception& error) {
        TORCH_WARN("q7x2: the profiler's event of ", describe(), " raised: ", error.what());
      }
      recordFunctionEndCallback_ = nullptr;
    }
    settled_ = true;
  });
}

void WorkQ7x2::announce_when_done() {
  {
    const std::lock_guard<std::mutex> lock(future_mutex_);
    if (announces_itself_) {
      return;
    }
    announces_itself_ = true;
  }
  const auto self = c10::intrusive_ptr<WorkQ7x2>::reclaim_copy(this);
  tasks_left_ = tasks_.size();
  if (tasks_.empty() && !runtime_->notify([self] { self->announce(); })) {
    announce();
  }
  for (const auto& task : tasks_) {
    task->notify([self] {
      if (--self->tasks_left_ == 0) {
        self->announce();
      }
    });
  }
}

// User code runs here. Its exceptions must neither end the process nor skip the following steps.
void WorkQ7x2::announce() {
  settle();
  try {
    complete_future();
  } catch (const std::exception& error) {
    TORCH_WARN("q7x2: a callback of the future of ", describe(), " raised: ", error.what());
  }
  const auto on_settled = std::exchange(on_settled_, nullptr);
  if (on_settled) {
    try {
      on_settled(*this);
    } catch (const std::exception& error) {
      TORCH_WARN("q7x2: the on-completion hook of ", describe(),
                 " raised, which changes nothing about the operation itself: ", error.what());
    }
  }
}

std::string WorkQ7x2::describe() const {
  return tasks_.size() == 1
             ? tasks_[0]->name()
             : c10d::opTypeToString(opType_) + " (sequence " + std::to_string(sequence_) + ")";
}

c10::intrusive_ptr<c10::ivalue::Future> WorkQ7x2::getFuture() {
  runtime_->enter();
  bool is_new = false;
  {
    const std::lock_guard<std::mutex> lock(future_mutex_);
    if (!future_) {
      std::vector<c10::Device> devices;
      for (const auto& list : results_) {
        for (const at::Tensor& tensor : list) {
          if (!tensor.device().is_cpu() &&
              std::find(devices.begin(), devices.end(), tensor.device()) == devices.end()) {
            devices.push_back(tensor.device());
          }
        }
      }
      c10::TypePtr type = c10::ListType::create(c10::TensorType::get());
      if (results_.size() > 1) {
        type = c10::ListType::create(type);
      }
      future_ = c10::make_intrusive<c10::ivalue::Future>(type, std::move(devices));
      is_new = true;
    }
  }
  if (is_new && settled_) {
    complete_future();  // it has no callbacks yet
  } else if (is_new) {
    announce_when_done();
  }
  return future_;
}

c10::intrusive_ptr<c10::ivalue::Future> WorkQ7x2::getFutureResult() {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
  getFuture()->addCallback([future](c10::ivalue::Future& done) {
    future->markCompleted(static_cast<int64_t>(done.hasError() ? c10d::WorkResult::COMM_ERROR
                                                               : c10d::WorkResult::SUCCESS));
  });
  return future;
}

void WorkQ7x2::complete_future() {
  bool mine = false;
  {
    const std::lock_guard<std::mutex> lock(future_mutex_);
    if (!future_) {
      return;
    }
    mine = !future_completed_;
    future_completed_ = true;
  }
  future_taken_.notify_all();
  // The future records events of the current streams, so those who wait for it wait for these
  // streams.
  const c10::OptionalStreamGuard on_stream(results_stream());
  if (!mine) {
    future_->wait();  // another thread completes it; callbacks run later
  } else if (exception_ != nullptr) {
    future_->setError(exception_);
  } else {
    future_->markCompleted(results_.size() > 1 ? c10::IValue(results_) : c10::IValue(result()));
  }
}

std::optional<c10::Stream> WorkQ7x2::results_stream() const {
  std::optional<c10::Stream> stream_of_all;
  if (stream() != nullptr) stream_of_all = stream()->results();
  for (const auto& part : parts_) {
    if (!part->is_on_device()) continue;
    if (!stream_of_all) stream_of_all = part->results_stream();
    const c10::OptionalStreamGuard on_stream(stream_of_all);
    part->stream()->block_current();
  }
  return stream_of_all;
}

// After a wait for the work, its future is complete.
void WorkQ7x2::await_future() {
  {
    std::unique_lock<std::mutex> lock(future_mutex_);
    if (!future_) {
      return;
    }
    future_taken_.wait_for(lock, kNotifierPatience, [this] { return future_completed_; });
  }
  complete_future();
}

TimePoint WorkQ7x2::submitted() const {
  TimePoint first = TimePoint::max();
  for (const auto& task : tasks_) {
    first = std::min(first, task->submitted());
  }
  return tasks_.empty() ? TimePoint{} : first;
}

TimePoint WorkQ7x2::finished() const {
  TimePoint last{};
  for (const auto& task : tasks_) {
    last = std::max(last, task->finished());
  }
  return last;
}

float WorkQ7x2::getDuration() const {
  TORCH_CHECK(settled_, "getDuration() may only be called on a completed work");
  return std::chrono::duration<float, std::milli>(finished() - submitted()).count();
}

}  // namespace q7x2
