#include "executor/collective/op_work.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "transport/shm/shm_channel.h"

namespace q7x2 {

bool OpWork::has_coded(const Op& op) const {
  return op.destination.is_coded() ||
         std::ranges::any_of(run_.plan().sources_of(op), &Block::is_coded);
}

OpOutcome OpWork::begin(Step step, size_t length) {
  const Op& op = run_.op(step.op);
  const bool is_coded = run_.coder() != nullptr && (op.takes_residual || has_coded(op));
  OpJob* job = nullptr;
  if (op.kind == OpKind::kCopy) {
    job = is_coded ? copy_coded(step, op, length) : copy(step, op, length);
  } else {
    job = is_coded ? reduce_coded(step, op, length) : reduce(step, op, length);
  }
  return job == nullptr ? OpOutcome::complete() : OpOutcome::continued_by(*job);
}

void OpWork::check_covers(const Region& region, size_t length) const {
  if (region.bytes >= length) return;
  throw Error(ErrorCode::kInternal, run_.plan().algorithm + " would use " + std::to_string(length) +
                                        " bytes of a block of " + std::to_string(region.bytes));
}

OpJob& OpWork::job(Step step, OpJob::Kind kind, size_t length) {
  OpJob& job = jobs_.take();
  job.kind = kind;
  job.step = step;
  job.length = length;
  job.call = &run_.call();
  job.coder = run_.coder();
  job.worker = run_.residence().worker(kind);
  job.task = &task_;
  return job;
}

OpJob* OpWork::copy(Step step, const Op& op, size_t length) {
  const Region source = blocks_.region(step.place, run_.plan().sources_of(op)[0], length);
  const Region destination = blocks_.writable(step.place, op.destination, length);
  check_covers(source, length);
  check_covers(destination, length);
  const bool is_there = source.data == destination.data;
  if (is_there && !inspects(op)) return nullptr;
  OpJob& job = this->job(step, is_there ? OpJob::Kind::kInspect : OpJob::Kind::kCopy, length);
  job.from.push_back({.elements = source.data, .message = {}});
  job.to = destination.data;
  job.inspects = inspects(op);
  return &job;
}

OpJob* OpWork::reduce(Step step, const Op& op, size_t length) {
  OpJob& job = this->job(step, OpJob::Kind::kReduce, length);
  for (const Block& block : run_.plan().sources_of(op)) {
    const Region source = blocks_.region(step.place, block, length);
    check_covers(source, length);
    job.addends.push_back(source.data);
  }
  const Region destination = blocks_.writable(step.place, op.destination, length);
  check_covers(destination, length);
  job.to = destination.data;
  job.divisor = op.is_final ? run_.call().divisor : 1;
  if (length > ShmChannel::kInlineBytes) job.also_to = blocks_.begin_stage(step);
  job.inspects = inspects(op);
  return &job;
}

OpJob& OpWork::stage(Step step, const Region& block) {
  OpJob& job = this->job(step, OpJob::Kind::kCopy, block.bytes);
  job.purpose = OpJob::Purpose::kStage;
  job.from.push_back({.elements = block.data, .message = {}});
  job.to = blocks_.begin_stage(step);
  return job;
}

OpJob& OpWork::take(Step step, const ShmChannel::Message& message, const Region& destination) {
  OpJob& job = this->job(step, OpJob::Kind::kCopy, message.length);
  job.purpose = OpJob::Purpose::kTake;
  job.message = message;
  job.from.push_back({.elements = job.message.data(), .message = {}});
  job.to = destination.data;
  return job;
}

OpOutcome OpWork::received(Step step) {
  const Op& op = run_.op(step.op);
  if (!inspects(op)) return OpOutcome::complete();
  const Region written = run_.slicing().part(op.destination, blocks_.slice(step.place));
  OpJob& job = this->job(step, OpJob::Kind::kInspect, written.bytes);
  job.purpose = OpJob::Purpose::kInspect;
  job.to = written.data;
  job.inspects = true;
  return OpOutcome::continued_by(job);
}

// The time of a device must not count for the processor.
OpWork::Finished OpWork::finish(OpJob& job) {
  const WorkTimes times = job.times();
  times_ += times;
  if (times.reduce > 0 && job.worker == nullptr) {
    run_.plans()->reductions().add(job.addends.size(), job.length, times.reduce);
  }
  const Finished finished{job.step, job.purpose, job.message};
  if (job.purpose == OpJob::Purpose::kOp) {
    const Block& made = run_.op(job.step.op).destination;
    if (made.is_coded()) blocks_.move(job.step.place, made, {job.to, job.made});
    blocks_.end_stage(job.step);
  } else if (job.purpose == OpJob::Purpose::kStage) {
    blocks_.end_stage(job.step);
  }
  jobs_.release(job);
  return finished;
}

}  // namespace q7x2
