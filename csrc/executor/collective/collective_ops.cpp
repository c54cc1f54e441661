// Where blocks lie, and what ops do to them.
//
// What an op does to memory is a job. It is prepared and accepted with the lock held, and run
// without it. That is safe because no two ops that touch the same memory are in progress at once,
// which the checker proves of every Schedule (plan/check/checker.h).
#include <algorithm>
#include <span>
#include <utility>

#include "executor/collective/collective.h"
#include "transport/run/job_queue.h"
#include "transport/ucx/tag.h"

namespace q7x2 {
namespace {

// What passes over so few bytes takes less time than to look at the clock, and to let the lock go
// and take it again.
constexpr size_t kTiny = 4096;

// Jobs that others need not wait for are run with the lock held. Codecs take longer for a byte.
bool is_short(const OpJob& job, size_t bytes) {
  const bool is_dense = job.kind == OpJob::Kind::kCopy || job.kind == OpJob::Kind::kReduce;
  return job.worker == nullptr && bytes <= (is_dense ? JobQueue::kSmall : kTiny);
}

}  // namespace

Region CollectiveTask::region(const Place& place, const Block& block, size_t length) const {
  if (block.is_coded()) {
    return place.coded_at[block.index];
  }
  if (block.space == Space::kScratch) {
    return {place.scratch_at[block.index], length};
  }
  return slicing_.part(block, place.slice);
}

Region CollectiveTask::writable(Place& place, const Block& block, size_t length) const {
  if (block.space == Space::kScratch) {
    place.scratch_at[block.index] = own_scratch(place, block.index);
  }
  return region(place, block, length);
}

bool CollectiveTask::covers(Locked& locked, const Region& region, size_t length) {
  if (region.bytes >= length) return true;
  go_wrong(locked,
           Error(ErrorCode::kInternal, name() + ": " + choice_.plan->algorithm + " would use " +
                                           std::to_string(length) + " bytes of a block of " +
                                           std::to_string(region.bytes)));
  return false;
}

OpJob& CollectiveTask::job_of(Step step, OpJob::Kind kind, size_t length) {
  OpJob& job = jobs_.take();
  job.kind = kind;
  job.step = step;
  job.length = length;
  job.call = &call_;
  job.coder = coder_.get();
  job.worker = residence_->worker(kind);
  job.task = this;
  return job;
}

OpJob* CollectiveTask::copy(Locked& locked, Step step, size_t length) {
  Place& place = places_[step.place];
  const Op& op = op_of(step);
  const Region source = region(place, choice_.plan->sources_of(op)[0], length);
  const Region destination = writable(place, op.destination, length);
  if (!covers(locked, source, length) || !covers(locked, destination, length)) return nullptr;
  const bool is_there = source.data == destination.data;
  if (is_there && !inspects(op)) return nullptr;
  OpJob& job = job_of(step, is_there ? OpJob::Kind::kInspect : OpJob::Kind::kCopy, length);
  job.from.push_back({.elements = source.data, .message = {}});
  job.to = destination.data;
  job.inspects = inspects(op);
  return &job;
}

OpJob* CollectiveTask::fold(Locked& locked, Step step, size_t length) {
  Place& place = places_[step.place];
  const Op& op = op_of(step);
  OpJob& job = job_of(step, OpJob::Kind::kReduce, length);
  size_t shortest = length;
  for (const Block& block : choice_.plan->sources_of(op)) {
    const Region source = region(place, block, length);
    shortest = std::min(shortest, source.bytes);
    job.addends.push_back(source.data);
  }
  const Region destination = writable(place, op.destination, length);
  shortest = std::min(shortest, destination.bytes);
  if (!covers(locked, {nullptr, shortest}, length)) return nullptr;
  job.to = destination.data;
  job.divisor = op.is_final ? call_.divisor : 1;
  if (length > ShmChannel::kInlineBytes && staging_.carries(op)) {
    job.also_to = staging_.at(step.place, op);
    place.staged[op.stage] = StageState::kOnItsWay;
  }
  job.inspects = inspects(op);
  return &job;
}

void CollectiveTask::launch(Locked& locked, OpJob& job) {
  const size_t bytes = job.length * std::max<size_t>(job.from.size() + job.addends.size(), 1);
  if (!is_short(job, bytes)) {
    enqueue(locked, job, bytes);
    return;
  }
  if (bytes <= kTiny) {
    job.run();
  } else {
    job.run_timed();
    record(locked).waits.leave_out(job.began(), job.ended());
  }
  accept(locked, job);
}

void CollectiveTask::worked(Locked& locked, Job& job) {
  for (std::unique_ptr<Job>* const before : {&planning_, &restoring_, &selection_}) {
    if (&job != before->get()) continue;
    job.check();
    before->reset();
    inputs_arrived(locked);
    return;
  }
  if (&job == moving_.get()) {
    moved(locked);
    return;
  }
  accept(locked, static_cast<OpJob&>(job));
  run_ready(locked);
}

// A device's time says nothing of the processor.
void CollectiveTask::note_times(const OpJob& job) {
  const WorkTimes times = job.times();
  work_ += times;
  if (times.reduce > 0 && job.worker == nullptr) {
    plans_->reductions().add(job.addends.size(), job.length, times.reduce);
  }
}

// Messages of other ranks are checked as they are read, in the job.
void CollectiveTask::accept(Locked& locked, OpJob& job) {
  try {
    job.check();
  } catch (const Error& error) {
    go_wrong(locked,
             Error(error.code(), std::string(error.what()) + ", in " + name(), error.rank()));
    return;
  }
  note_times(job);
  const Step step = job.step;
  const OpJob::Purpose purpose = job.purpose;
  const ShmChannel::Message message = job.message;
  Place& place = places_[step.place];
  const Op& op = op_of(step);
  if (purpose == OpJob::Purpose::kOp && op.destination.is_coded()) {
    place.coded_at[op.destination.index] = {job.to, job.made};
  }
  jobs_.release(job);
  switch (purpose) {
    case OpJob::Purpose::kOp:
      if (op.stage != Op::kNoStage && !place.staged.empty() &&
          place.staged[op.stage] == StageState::kOnItsWay) {
        place.staged[op.stage] = StageState::kYes;
      }
      complete(locked, step);
      return;
    case OpJob::Purpose::kStage: {
      place.staged[op.stage] = StageState::kYes;
      post(locked, step);
      const auto is_its = [&](const Step& other) {
        return other.place == step.place && op_of(other).stage == op.stage;
      };
      std::vector<Step> ready;
      std::ranges::copy_if(awaiting_stage_, std::back_inserter(ready), is_its);
      std::erase_if(awaiting_stage_, is_its);
      for (const Step& other : ready) {
        if (!is_over(locked)) post(locked, other);
      }
      return;
    }
    case OpJob::Purpose::kTake:
      std::erase_if(place.held, [&](const auto& held) {
        return held.first == op.peer && held.second.staged == message.staged;
      });
      group().messages().release_message(locked, op.peer, message);
      received(locked, step);
      return;
    case OpJob::Purpose::kInspect:
      complete(locked, step);
      return;
  }
}

}  // namespace q7x2
