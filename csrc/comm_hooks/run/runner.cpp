#include "comm_hooks/run/runner.h"

#include <atomic>
#include <thread>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "backend/work.h"
#include "comm_hooks/run/dense.h"

// Each sets the number of threads only for the calling thread, which no function of ATen does. They
// are looked up in the process at run time; a build of torch may lack both.
extern "C" {
void omp_set_num_threads(int) __attribute__((weak));
int MKL_Set_Num_Threads_Local(int) __attribute__((weak));
}

namespace q7x2 {
namespace {

void limit_threads(int count) {
  // ATen initialises a thread on first use; our setting must come after that
  at::get_num_threads();
  if (omp_set_num_threads != nullptr) omp_set_num_threads(count);
  if (MKL_Set_Num_Threads_Local != nullptr) MKL_Set_Num_Threads_Local(count);
}

std::exception_ptr as_torch_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& ours) {
    return to_exception(ours);
  } catch (...) {
    return error;
  }
}

}  // namespace

void HookJob::start(std::vector<HookCollective> collectives, Rest rest) {
  runner.start_collectives(*this, std::move(collectives), rest);
}

void HookJob::end() {
  runner.end_collectives(*this);
}

HookJob::~HookJob() {
  if (future && !future->completed()) {
    future->setErrorIfNeeded(as_torch_error(std::make_exception_ptr(
        Error(ErrorCode::kAborted, "the hook was destroyed while a gradient was being reduced"))));
  }
}

void HookJob::reduced() {
  // a thread that waits for the future would return to a host program that is ending
  block_at_exit();
  if (!future->completed()) future->markCompleted(bucket.buffer);
}

std::shared_ptr<HookRunner> HookRunner::make(
    std::vector<ProcessGroupPtr> groups, const std::vector<NamedParameter>& parameters,
    const MakeHook& make_hook, int threads, Serves serves, bool may_skip,
    std::function<void(const std::function<void()>&)> without_gil) {
  // A callback of a future runs in the worker and may release the last reference, but a thread
  // cannot join itself.
  const auto destroy = [](HookRunner* runner) {
    if (runner->worker_->is_left_alone()) return;
    if (runner->worker_->is_current()) {
      std::thread([runner] { delete runner; }).detach();
    } else {
      delete runner;
    }
  };
  std::shared_ptr<HookRunner> runner(
      new HookRunner(std::move(groups), threads, serves, std::move(without_gil)), destroy);
  runner->context_.may_skip = may_skip;
  for (const NamedParameter& parameter : parameters) runner->given_.push_back(parameter.tensor);
  runner->worker_->run([&] {
    for (const NamedParameter& parameter : parameters) {
      const size_t number = runner->number_of(parameter.tensor);
      runner->context_.parameters[number].name = parameter.name;
    }
    runner->hook_ = make_hook(runner->context_);
    if (runner->hook_->lanes() > runner->groups_.size()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "expected " + std::to_string(runner->hook_->lanes()) +
                      " process groups for this hook's collectives, got " +
                      std::to_string(runner->groups_.size()));
    }
  });
  return runner;
}

HookRunner::HookRunner(std::vector<ProcessGroupPtr> groups, int threads, Serves serves,
                       std::function<void(const std::function<void()>&)> without_gil)
    : groups_(std::move(groups)),
      serves_(serves),
      without_gil_(std::move(without_gil)),
      lanes_(groups_.size()),
      worker_(std::make_shared<Worker>([threads] { limit_threads(threads); })) {
  if (groups_.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "a hook needs at least one process group");
  }
  context_.rank = groups_[0]->getRank();
  context_.world_size = groups_[0]->getSize();
}

HookRunner::~HookRunner() {
  // The worker may be releasing a tensor, for which it may need the GIL.
  without_gil_([this] {
    worker_->stop();
    jobs_.clear();
  });
}

size_t HookRunner::number_of(const at::Tensor& parameter) {
  const auto [entry, is_new] =
      numbers_.emplace(parameter.unsafeGetTensorImpl(), context_.parameters.size());
  if (is_new) {
    parameters_.emplace_back(parameter.getIntrusivePtr());
    context_.parameters.push_back({"", parameter.sizes().vec(), parameter.scalar_type()});
  }
  return entry->second;
}

c10::intrusive_ptr<c10::ivalue::Future> HookRunner::reduce(c10d::GradBucket& bucket) {
  auto job = std::make_shared<HookJob>(*this);
  job->bucket.index = bucket.getIndex();
  job->bucket.is_last = bucket.isLast();
  job->bucket.buffer = bucket.getBuffer();
  job->is_first = bucket.getIndex() == 0;
  job->is_ordered = true;
  await_end_of_backward();
  return hand_over(job, bucket.getParameters());
}

c10::intrusive_ptr<c10::ivalue::Future> HookRunner::reduce(size_t index,
                                                           const std::vector<size_t>& parameters,
                                                           const at::Tensor& buffer,
                                                           bool is_first) {
  std::vector<at::Tensor> named;
  int64_t numel = 0;
  for (const size_t number : parameters) {
    if (number >= given_.size()) {
      throw Error(ErrorCode::kInvalidArgument, "expected numbers of the " +
                                                   std::to_string(given_.size()) +
                                                   " parameters, got " + std::to_string(number));
    }
    named.push_back(given_[number]);
    numel += given_[number].numel();
  }
  if (buffer.dim() != 1 || !buffer.is_contiguous() || buffer.numel() != numel) {
    throw Error(ErrorCode::kInvalidArgument,
                "expected a contiguous buffer of one dimension with the " + std::to_string(numel) +
                    " elements of its parameters, got shape " + c10::str(buffer.sizes()));
  }
  auto job = std::make_shared<HookJob>(*this);
  job->bucket.index = index;
  job->bucket.buffer = buffer;
  job->is_first = is_first;
  return hand_over(job, std::move(named));
}

c10::intrusive_ptr<c10::ivalue::Future> HookRunner::hand_over(const std::shared_ptr<HookJob>& job,
                                                              std::vector<at::Tensor> parameters) {
  std::vector<c10::Device> devices;
  const c10::Device device = job->bucket.buffer.device();
  if (!device.is_cpu()) {
    devices.push_back(device);
    if (!stream_) {
      stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
    }
    follow_caller();
  }
  job->future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get(), devices);
  worker_->post(Worker::Urgency::kNow, [this, job, parameters = std::move(parameters)] {
    try {
      begin(job, parameters);
    } catch (...) {
      fail(*job, std::current_exception());
      return;
    }
    resume(job);
  });
  return job->future;
}

void HookRunner::begin(const std::shared_ptr<HookJob>& job,
                       const std::vector<at::Tensor>& parameters) {
  if (failure_) std::rethrow_exception(failure_);
  Bucket& b = job->bucket;
  if (!b.buffer.is_sparse()) {
    int64_t offset = 0;
    for (const at::Tensor& parameter : parameters) {
      const int64_t numel = parameter.numel();
      if (numel > 0) {
        b.gradients.push_back({number_of(parameter), b.buffer.narrow(0, offset, numel)});
      }
      offset += numel;
    }
  }
  job->ticket = lanes_.enter();
  jobs_.emplace(job->ticket, job);
  if (serves_ == Serves::kOneModel) {
    if (begins_another_step(*job)) {
      overflowed_ |= !backward_ended_;  // the previous backward failed
      end_step();
    }
    if (!in_step_) begin_step();
    last_bucket_came_ |= b.is_last;
    backward_ended_ = false;
    last_index_ = b.index;
    b.step = step_;
  } else {
    // The steps of several models cannot be distinguished, but all ranks have the buckets in one
    // order.
    b.step = job->ticket;
    b.index = b.gradients.empty() ? 0 : b.gradients.front().parameter;
  }
  ++stats_.buckets;
  stats_.gradient_bytes += b.buffer.is_sparse() ? 0 : b.buffer.nbytes();
  job->phases = hook_->reduce(b);
}

void HookRunner::resume(const std::shared_ptr<HookJob>& job) {
  try {
    const at::NoGradGuard no_grad;
    const c10::OptionalStreamGuard on_stream(stream_);
    job->phases.resume();
    if (job->phases.done()) finish(*job);
  } catch (...) {
    fail(*job, std::current_exception());
  }
}

void HookRunner::finish(HookJob& job) {
  jobs_.erase(job.ticket);
  lanes_.leave(job.ticket, job.next_lane);
  // In the task that completes the future: whoever then reads the state sees it after the step.
  if (is_step_over()) end_step();
  job.reduced();
}

// The step is undone on this rank, and no step is in flight. Other ranks may wait in collectives
// that this rank will not start, so these process groups are not used any more.
void HookRunner::fail(HookJob& job, std::exception_ptr error) {
  block_at_exit();
  if (!failure_) failure_ = as_torch_error(error);
  const auto jobs = std::exchange(jobs_, {});
  if (in_step_) hook_->abort();
  in_step_ = last_bucket_came_ = backward_ended_ = overflowed_ = false;
  // Threads that are told of the failure see the state after the step was undone.
  job.future->setErrorIfNeeded(failure_);
  for (const auto& [ticket, other] : jobs) {
    other->future->setErrorIfNeeded(failure_);
  }
}

void HookRunner::start_collectives(HookJob& job, std::vector<HookCollective> collectives,
                                   Rest rest) {
  const size_t lane = job.next_lane++;
  const auto urgency = rest == Rest::kNone ? Worker::Urgency::kLater : Worker::Urgency::kNow;
  lanes_.start(job.ticket, lane, [this, &job, lane, collectives = std::move(collectives), urgency] {
    const c10::OptionalStreamGuard on_stream(stream_);
    job.collectives_begin = monotonic_seconds();
    if (under_way_++ == 0) wire_begin_ = job.collectives_begin;
    // The runner may be destroyed before they end; then its worker, which is stopped, drops this.
    const auto left = std::make_shared<std::atomic<size_t>>(collectives.size());
    const auto resume_at_last = [this, left, worker = worker_, ticket = job.ticket,
                                 urgency](size_t ended) {
      if (left->fetch_sub(ended) != ended) return;
      worker->post(urgency, [this, ticket] {
        const auto found = jobs_.find(ticket);
        if (found != jobs_.end()) resume(std::shared_ptr<HookJob>(found->second));
      });
    };
    size_t started = 0;
    try {
      for (const HookCollective& collective : collectives) {
        stats_.message_bytes += collective.bytes;
        job.works.push_back(collective.start(*groups_[lane]));
        job.works.back()->getFuture()->addCallback(
            [resume_at_last](c10::ivalue::Future&) { resume_at_last(1); });
        ++started;
      }
    } catch (...) {
      job.start_error = std::current_exception();
      resume_at_last(collectives.size() - started);
    }
  });
  if (rest == Rest::kNone) lanes_.leave(job.ticket, lane + 1);
}

void HookRunner::end_collectives(HookJob& job) {
  if (--under_way_ == 0) wire_seconds_ += monotonic_seconds() - wire_begin_;
  if (job.start_error) std::rethrow_exception(job.start_error);
  // They are complete: this throws their errors, or makes the stream wait for them.
  for (const auto& work : job.works) work->wait();
  job.works.clear();
  record({job.bucket.step, job.bucket.index, "collective", job.next_lane - 1, job.collectives_begin,
          monotonic_seconds()});
}

void HookRunner::record(HookEvent event) {
  if (tracing_) events_.push_back(std::move(event));
}

void HookRunner::follow_caller() {
  const c10::impl::VirtualGuardImpl guard(stream_->device_type());
  c10::Event ready(stream_->device_type());
  ready.record(guard.getStream(stream_->device()));
  ready.block(*stream_);
}

void HookRunner::between_steps(const std::function<void()>& task) {
  if (stream_) follow_caller();
  worker_->run([this, &task] {
    if (in_step_) {
      throw Error(ErrorCode::kInvalidArgument,
                  "a hook's state can be read and changed between steps only, but a backward is in "
                  "flight or ended before all gradients were reduced");
    }
    const at::NoGradGuard no_grad;
    const c10::OptionalStreamGuard on_stream(stream_);
    task();
    if (stream_) stream_->synchronize();
  });
}

uint64_t HookRunner::step() {
  uint64_t step = 0;
  between_steps([&] { step = step_; });
  return step;
}

void HookRunner::detach() {
  between_steps([this] { hook_ = make_dense(context_, std::nullopt); });
}

void HookRunner::rescale(double factor) {
  between_steps([this, factor] { hook_->rescale(factor); });
}

void HookRunner::save(HookState& shared, HookState& local, uint64_t& step) {
  between_steps([&] {
    hook_->save(shared, local);
    step = step_;
  });
}

void HookRunner::load(const HookState& shared, const HookState& local, uint64_t step) {
  between_steps([&] {
    hook_->load(shared, local);
    step_ = step;
    last_facts_.reset();
  });
}

HookStats HookRunner::stats() {
  HookStats stats;
  worker_->run([&] { stats = stats_; });
  return stats;
}

void HookRunner::trace(bool enabled) {
  worker_->run([&] { tracing_ = enabled; });
}

std::vector<HookEvent> HookRunner::take_events() {
  std::vector<HookEvent> events;
  worker_->run([&] { events = std::exchange(events_, {}); });
  return events;
}

}  // namespace q7x2
