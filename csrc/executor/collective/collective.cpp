#include "executor/collective/collective.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "ledger/call_signature.h"
#include "ledger/flight_record.h"
#include "ledger/name_table.h"
#include "transport/run/job_queue.h"
#include "transport/run/runtime.h"

namespace q7x2 {
namespace {

// A job of at most this many bytes takes less time than reading the clock, or than releasing and
// retaking the lock.
constexpr size_t kTiny = 4096;

// Whether a job runs at once, with the lock held. Codecs take longer per byte, so their limit is
// lower.
bool is_short(const OpJob& job, size_t bytes) {
  const bool is_dense = job.kind == OpJob::Kind::kCopy || job.kind == OpJob::Kind::kReduce;
  return job.worker == nullptr && bytes <= (is_dense ? JobQueue::kSmall : kTiny);
}

size_t total_bytes(const std::vector<Region>& regions) {
  size_t bytes = 0;
  for (const Region& region : regions) bytes += region.bytes;
  return bytes;
}

}  // namespace

// ------------------------------------------------------------------------------------ description

void CollectiveTask::describe(FlightRecord& record) const {
  const CollectiveCall& call = run_.call();
  record.collective = call.collective;
  record.dtype = call.dtype;
  record.reduce = call.reduce;
  record.peer = call.root;
  record.is_internal = purpose_ != nullptr;
  record.input_bytes = total_bytes(call.input);
  record.output_bytes = total_bytes(call.output);
  record.fingerprint = run_.fingerprint();
}

void CollectiveTask::report(FlightRecord& record, NameTable& names) const {
  if (run_.has_plan()) {
    record.plan = names.number_of(run_.plan().algorithm);
    record.predicted = static_cast<float>(run_.choice().seconds);
  }
  const Coding& coding = run_.call().coding;
  if (coding) record.codec = names.number_of(coding.codec->name());
  record.work = ops_.times();
  record.slices = static_cast<uint32_t>(dag_.num_slices());
  record.slices_done = static_cast<uint32_t>(dag_.slices_done());
}

std::string CollectiveTask::name() const {
  if (const auto call = call_of_prerequisite_.lock()) return call->name();
  const CollectiveCall& call = run_.call();
  FlightRecord record;
  describe(record);
  record.sequence = sequence();
  std::string details;  // further arguments, which may differ between the calls of two ranks
  if (call.divisor > 1) details += ", divided by " + std::to_string(call.divisor);
  if (call.coding) details += ", codec " + call.coding.codec->name();
  if (!call.algorithms.empty()) details += ", algorithms " + call.algorithms;
  if (call.is_direct) details += ", between devices";
  return call_signature(record, call.title, details) + " on rank " +
         std::to_string(group().rank()) + " of " + std::to_string(group().world_size()) +
         " in group '" + group().membership().name() + "'";
}

bool CollectiveTask::can_fail_alone(bool waits) const {
  if (is_of_device()) return false;  // the caller may have gone on: only a later call can raise
  if (lacks_rank_) return true;      // no later call succeeds either, so nobody needs the result
  if (purpose_ || no_prerequisite_) return false;  // all ranks need the result of a prerequisite
  return waits || !prerequisite_;
}

// ----------------------------------------------------------------------------------------- slices

void CollectiveTask::admit_slices(Locked& locked) {
  while (dag_.can_admit()) {
    const size_t slice = dag_.admitted();
    if (run_.residence().arrived() < run_.slicing().bytes_before(slice + 1)) return;
    if (!blocks_.is_allocated()) {
      run_.begin();
      blocks_.allocate(run_.for_residence(), dag_.window(), group().runtime().scratch());
    }
    const uint32_t place = dag_.place_of(slice);
    if (blocks_.staging() && !blocks_.staging().is_returned(place)) {
      if (!std::exchange(is_stalled_, true)) group().messages().stall(locked, *this);
      return;
    }
    blocks_.open(place, slice);
    dag_.admit();
  }
}

bool CollectiveTask::stalled(Locked& locked) {
  is_stalled_ = false;
  const size_t before = dag_.admitted();
  admit_slices(locked);
  run_ready(locked);
  return dag_.admitted() > before;
}

void CollectiveTask::run_ready(Locked& locked) {
  // An op that completes at once makes others ready. The loop of the outermost call runs these,
  // without recursion.
  if (is_running_ready_) return;
  is_running_ready_ = true;
  while (!is_over(locked)) {
    const std::optional<Step> step = dag_.next();
    if (!step) break;
    run(locked, *step);
  }
  is_running_ready_ = false;
}

void CollectiveTask::run(Locked& locked, Step step) {
  const Op& op = run_.op(step.op);
  const size_t slice = blocks_.slice(step.place);
  const size_t length = run_.slicing().part(op.length_of, slice).bytes;
  // If parts are uneven, each pair of ranks exchanges the first slice even if it is empty. So a
  // rank that expects nothing from a rank that sends something notices, and so does the sender in
  // the opposite case.
  const bool is_message = op.kind == OpKind::kSend || op.kind == OpKind::kRecv;
  if (length == 0 && !(run_.call().uneven && is_message && slice == 0)) {
    complete(locked, step);
    return;
  }
  OpOutcome outcome;
  try {
    switch (op.kind) {
      case OpKind::kSend:
        outcome = ports_.send(locked, step, length);
        break;
      case OpKind::kRecv:
        outcome = ports_.receive(locked, step, length);
        break;
      case OpKind::kCopy:
      case OpKind::kReduce:
        outcome = ops_.begin(step, length);
        break;
    }
  } catch (const Error& error) {
    go_wrong(locked, error);
  }
  follow(locked, step, outcome);
}

void CollectiveTask::follow(Locked& locked, Step step, const OpOutcome& outcome) {
  if (outcome.state == OpOutcome::State::kContinues) launch(locked, *outcome.job);
  if (outcome.state == OpOutcome::State::kComplete && !is_over(locked)) complete(locked, step);
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

// The job has checked the messages of other ranks that it read. Its error is thrown here.
void CollectiveTask::accept(Locked& locked, OpJob& job) {
  try {
    job.check();
  } catch (const Error& error) {
    go_wrong(locked,
             Error(error.code(), std::string(error.what()) + ", in " + name(), error.rank()));
    return;
  }
  const OpWork::Finished done = ops_.finish(job);
  switch (done.purpose) {
    case OpJob::Purpose::kOp:
    case OpJob::Purpose::kInspect:
      complete(locked, done.step);
      return;
    case OpJob::Purpose::kTake:
      follow(locked, done.step, ports_.taken(locked, done.step, done.message));
      return;
    case OpJob::Purpose::kStage:
      follow(locked, done.step, ports_.post(locked, done.step));
      for (const Step& other : ports_.take_waiting(done.step)) {
        if (!is_over(locked)) follow(locked, other, ports_.post(locked, other));
      }
      return;
  }
}

void CollectiveTask::worked(Locked& locked, Job& job) {
  if (&job == phase_job_) {
    end_job(locked);
  } else {
    accept(locked, static_cast<OpJob&>(job));
    run_ready(locked);
  }
}

void CollectiveTask::completed(Locked& locked, uint32_t token, size_t length, uint64_t tag) {
  follow(locked, MessagePorts::step_of(token), ports_.completed(locked, token, length, tag));
  run_ready(locked);
}

void CollectiveTask::arrived(Locked& locked, uint32_t token, const ShmChannel::Message& message) {
  const Step step = MessagePorts::step_of(token);
  OpOutcome outcome;
  try {
    outcome = ports_.take(locked, step, message);
  } catch (const Error& error) {
    go_wrong(locked, error);
  }
  follow(locked, step, outcome);
  run_ready(locked);
}

void CollectiveTask::truncated(Locked& locked, uint32_t token, uint64_t) {
  ports_.disagree(locked, MessagePorts::step_of(token));
}

void CollectiveTask::complete(Locked& locked, Step step) {
  if (!dag_.complete(step)) return;
  blocks_.release_held(locked, step.place, group().messages());
  if (dag_.done()) {
    complete_last_slice(locked);
    return;
  }
  const size_t final_bytes = run_.slicing().bytes_before(dag_.slices_done());
  if (run_.slicing().is_flat()) set_ready(locked, final_bytes);
  run_.residence().finish(final_bytes);
  admit_slices(locked);
}

// ------------------------------------------------------ after the last slice, and after an error

void CollectiveTask::complete_last_slice(Locked& locked) {
  run_.end();
  blocks_.free(group().runtime().scratch());
  if (blocks_.staging()) blocks_.staging().retire(locked, group());
  if (!run_.residence().leaves()) {
    conclude(locked);
    return;
  }
  moving_ = std::make_unique<ResidenceJob>(run_.residence(), run_.for_residence(),
                                           Residence::Way::kOut, *this);
  begin_job(locked, *moving_, run_.slicing().bytes());
}

void CollectiveTask::conclude(Locked& locked) {
  const BlockCoder* const coder = run_.coder();
  if (coder != nullptr && (coder->met_nonfinite() || run_.residence().met_nonfinite())) {
    fail(locked, Error(ErrorCode::kNotFinite, "infinities or NaNs in the result of " + name()));
    return;
  }
  // With a leftover message, ranks have made different calls. Then this call stays unfinished until
  // the group fails. The error names the calls of both ranks.
  if (!group().agreement().finds_leftover(locked)) finish(locked);
}

void CollectiveTask::timed_out(Locked& locked) {
  const Error error = timeout_error(locked);
  fail(locked, error);
  group().fail(locked, error);
}

void CollectiveTask::go_wrong(Locked& locked, const Error& error) {
  lacks_rank_ = error.code() == ErrorCode::kPeerLeft;
  if (!is_over(locked)) group().fail_call(locked, *this, error);
}

// After an error, returns what other ranks have staged, and frees this rank's staging. No job runs
// any more.
void CollectiveTask::published(Locked& locked) {
  if (!error()) return;
  blocks_.release_held(locked, group().messages());
  if (blocks_.staging()) blocks_.staging().retire(locked, group());
}

}  // namespace q7x2
