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
  if (!planned.counting) return;
  InputSelection selection(run_);
  const std::vector<int32_t> counts = selection.count();
  ops_.add_selection(selection.took());
  selection_.reset();
  prerequisite_ = make_prerequisite(
      group_pointer(),
      std::make_shared<CountedCut>(run_.plans(), planned.counting, counts, run_.slicing()),
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

bool CollectiveTask::has_contributed(Locked& locked) {
  if (!is_asked_ && !awaits_inputs(locked)) {
    is_asked_ = true;
    if (!purpose_->is_needed(locked)) {
      dag_ = DagWindow(&memory_);
      finish(locked);
      return false;
    }
    preparation_ = purpose_->contribute(locked, group());
    if (preparation_) enqueue(locked, *preparation_, Prerequisite::kJobBytes);
  }
  return is_asked_ && !preparation_;
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
  if (preparation_) {
    enqueue(locked, *preparation_, run_.slicing().bytes());
  } else if (!has_ops) {
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
  if (preparation_) return;
  if (dag_.num_slices() == 0) {
    finish(locked);
    return;
  }
  if (purpose_ && !has_contributed(locked)) return;
  if (moving_) {
    if (!is_moving_ && run_.residence().has_arrived()) move(locked);
    return;
  }
  if (selection_) {
    if (!is_selecting_ && run_.residence().has_arrived()) {
      is_selecting_ = true;
      enqueue(locked, *selection_, selection_->bytes());
    }
    return;
  }
  admit_slices(locked);
  run_ready(locked);
}

void CollectiveTask::move(Locked& locked) {
  is_moving_ = true;
  enqueue(locked, *moving_, run_.slicing().bytes());
}

void CollectiveTask::moved(Locked& locked) {
  moving_->check();
  if (!moving_->is_over()) {
    move(locked);
    return;
  }
  if (std::unique_ptr<Residence> replacement = moving_->take_replacement()) {
    locked.drop_later(std::shared_ptr<Residence>(run_.replace_residence(std::move(replacement))));
  }
  moving_.reset();
  if (dag_.done()) {
    conclude(locked);
    return;
  }
  if (run_.residence().selects()) selection_.reset();
  inputs_arrived(locked);
}

}  // namespace q7x2
