// CollectiveTask up to the first slice: the choice, the prerequisites, and the start.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/recycling_allocator.h"
#include "executor/collective/collective.h"
#include "executor/collective/counted_cut.h"
#include "executor/collective/plan_prerequisites.h"
#include "transport/run/runtime.h"

namespace q7x2 {
namespace {

constexpr size_t kLine = 64;

}  // namespace

std::shared_ptr<CollectiveTask> CollectiveTask::make(std::shared_ptr<Group> group,
                                                     PlannedCall&& planned,
                                                     std::shared_ptr<void> keep_alive,
                                                     std::chrono::milliseconds timeout) {
  return std::allocate_shared<CollectiveTask>(RecyclingAllocator<CollectiveTask>(),
                                              std::move(group), std::move(planned),
                                              std::move(keep_alive), timeout);
}

CollectiveTask::CollectiveTask(std::shared_ptr<Group> group, PlannedCall&& planned,
                               std::shared_ptr<void> keep_alive, std::chrono::milliseconds timeout)
    : Task(std::move(group), timeout),
      keep_alive_(std::move(keep_alive)),
      run_(std::move(planned)) {
  if (run_.has_plan()) plan_known();
  if (!run_.counting()) return;
  InputSelection selection(run_);
  const std::vector<int32_t> counts = selection.count();
  ops_.add_selection(selection.took());
  selection_.reset();
  prerequisite_ = make_prerequisite(
      group_pointer(),
      std::make_shared<CountedCut>(run_.plans(), run_.counting(), counts, run_.slicing()),
      this->timeout());
}

void CollectiveTask::set_residence(std::unique_ptr<Residence> residence) {
  set_inputs(residence->inputs());
  run_.set_residence(std::move(residence));
}

// --------------------------------------------------------------------------------- prerequisites

std::shared_ptr<CollectiveTask> CollectiveTask::make_prerequisite(
    std::shared_ptr<Group> group, std::shared_ptr<Prerequisite> what,
    std::chrono::milliseconds timeout) {
  auto task = std::make_shared<CollectiveTask>(std::move(group), what->take_call(), what, timeout);
  task->purpose_ = std::move(what);
  return task;
}

std::shared_ptr<CollectiveTask> CollectiveTask::before(const Task& call,
                                                       std::shared_ptr<Prerequisite> what) {
  auto task = make_prerequisite(call.group_pointer(), std::move(what), call.timeout());
  task->call_of_prerequisite_ = call.weak_from_this();
  return task;
}

void CollectiveTask::set_prerequisite(std::shared_ptr<Prerequisite> what) {
  prerequisite_ = make_prerequisite(group_pointer(), std::move(what), timeout());
}

// If a prerequisite cannot be made, the call is submitted all the same, and fails with its group.
std::shared_ptr<Task> CollectiveTask::prerequisite(Locked& locked) {
  run_.count(locked);
  if (prerequisite_) prerequisite_->call_of_prerequisite_ = weak_from_this();
  if (run_.entry()->prerequisite_of(run_.number()) == PlanCache::Entry::Prerequisite::kNone) {
    return prerequisite_;
  }
  try {
    // The prerequisites of the Plan come first. So the call itself absorbs the one that it was
    // given.
    std::shared_ptr<CollectiveTask>* first = &prerequisite_;
    while (*first) first = &(*first)->prerequisite_;
    *first = plan_prerequisite();
  } catch (...) {
    no_prerequisite_ = std::current_exception();
  }
  return prerequisite_;
}

std::shared_ptr<CollectiveTask> CollectiveTask::plan_prerequisite() {
  std::shared_ptr<CollectiveTask> last;
  for (auto& what : prerequisites_of(run_.plans(), run_.entry(), run_.number(),
                                     static_cast<uint32_t>(run_.fingerprint()))) {
    auto next = before(*this, std::move(what));
    next->prerequisite_ = std::exchange(last, nullptr);
    last = std::move(next);
  }
  return last;
}

// Tasks of a group begin in order. So when this runs, all prerequisites up to this call have been
// absorbed, and none of a later call has been.
bool CollectiveTask::absorbs_prerequisite(Locked& locked) {
  if (no_prerequisite_) std::rethrow_exception(no_prerequisite_);
  if (!prerequisite_->done()) return false;
  preparation_ = prerequisite_->purpose_->absorb(locked);
  prerequisite_.reset();
  return true;
}

bool CollectiveTask::is_hopeless() const {
  const bool has_failed = prerequisite_ && prerequisite_->done() && prerequisite_->error();
  return has_failed || group().departure().find_missing(sequence()) >= 0;
}

// ------------------------------------------------------------------------ before the first slice

void CollectiveTask::plan_known() {
  if (group().messages().channel() != nullptr && !run_.call().is_direct) blocks_.share(group());
  if (run_.selects()) selection_ = std::make_unique<InputSelection>(run_);
}

size_t CollectiveTask::window() const {
  return std::min(static_cast<size_t>(run_.choice().window), most_slices_);
}

// Collectives of a group reserve staging in order, on every rank, and never need more while they
// run. So the oldest collective never needs staging that a waiting collective holds.
bool CollectiveTask::reserve(Locked& locked) {
  if (is_hopeless()) return true;
  if ((prerequisite_ || no_prerequisite_) && !absorbs_prerequisite(locked)) return false;
  if (!run_.has_plan()) {
    if (!run_.choose()) return false;
    plan_known();
  }
  ShmChannel* const channel = group().messages().channel();
  SharedStaging& staging = blocks_.staging();
  const Slicing& slicing = run_.slicing();
  const BlockCoder* const coder = run_.coder();
  const size_t slices = slicing.num_slices();
  const bool is_inline = slicing.bytes() <= ShmChannel::kInlineBytes && coder == nullptr;
  if (channel == nullptr || slices == 0 || !staging.is_needed() || staging || is_inline) {
    return true;
  }
  size_t stage_bytes =
      std::min(run_.choice().part_bytes, (slicing.bytes() + kLine - 1) / kLine * kLine);
  if (coder != nullptr) stage_bytes = std::max(stage_bytes, coder->max_bytes());
  return staging.reserve(*channel, std::min(window(), slices), stage_bytes);
}

void CollectiveTask::start(Locked& locked) {
  group().agreement().remember(locked, sequence(), run_.fingerprint());
  if (prerequisite_ && prerequisite_->error()) {
    go_wrong(locked, *prerequisite_->error());
    return;
  }
  const size_t slices = run_.slicing().num_slices();
  const bool has_ops = slices > 0 && !run_.plan().ops.empty();
  if (!has_ops && !preparation_) {
    finish(locked);
    return;
  }
  const SharedStaging& staging = blocks_.staging();
  if (has_ops) {
    dag_ = DagWindow(run_.plan(), slices, staging ? staging.places() : window(), &memory_);
  }
  if (purpose_ && !purpose_->names_late()) record(locked).warn_at = TimePoint::max();
  if (run_.residence().enters()) {
    moving_ = std::make_unique<ResidenceJob>(run_.residence(), run_.for_residence(),
                                             Residence::Way::kIn, *this);
  }
  awaits_inputs(locked);  // asks to be told about inputs that arrive from now on
  inputs_arrived(locked);
}

void CollectiveTask::inputs_arrived(Locked& locked) {
  while (phase_job_ == nullptr && passes(locked)) next_phase();
}

bool CollectiveTask::passes(Locked& locked) {
  const bool has_arrived = run_.residence().has_arrived();
  switch (phase_) {
    case Phase::kPreparation:
      return !preparation_ || begin_job(locked, *preparation_, run_.slicing().bytes());
    case Phase::kContribution:
      if (dag_.num_slices() > 0) return !purpose_ || contributes(locked);
      finish(locked);
      return false;
    case Phase::kEntry:
      return !moving_ || (has_arrived && begin_job(locked, *moving_, run_.slicing().bytes()));
    case Phase::kSelection:
      return !selection_ || (has_arrived && begin_job(locked, *selection_, selection_->bytes()));
    case Phase::kSlices:
      admit_slices(locked);
      run_ready(locked);
      return false;
  }
  return false;
}

bool CollectiveTask::contributes(Locked& locked) {
  if (awaits_inputs(locked)) return false;
  if (!purpose_->is_needed(locked)) {
    dag_ = DagWindow(&memory_);
    finish(locked);
    return false;
  }
  preparation_ = purpose_->contribute(locked, group());
  return !preparation_ || begin_job(locked, *preparation_, Prerequisite::kJobBytes);
}

bool CollectiveTask::begin_job(Locked& locked, Job& job, size_t bytes) {
  phase_job_ = &job;
  enqueue(locked, job, bytes);
  return false;
}

void CollectiveTask::end_job(Locked& locked) {
  phase_job_->check();
  const bool is_moving = phase_job_ == moving_.get();
  if (is_moving && !moving_->is_over()) {
    enqueue(locked, *moving_, run_.slicing().bytes());
    return;
  }
  phase_job_ = nullptr;
  preparation_.reset();
  if (phase_ == Phase::kSelection) ops_.add_selection(std::exchange(selection_, nullptr)->took());
  if (is_moving) {
    if (std::unique_ptr<Residence> replacement = moving_->take_replacement()) {
      locked.drop_later(std::shared_ptr<Residence>(run_.replace_residence(std::move(replacement))));
    }
    moving_.reset();
    if (run_.residence().selects()) selection_.reset();
  }
  if (phase_ == Phase::kSlices) {
    conclude(locked);
    return;
  }
  next_phase();
  inputs_arrived(locked);
}

}  // namespace q7x2
