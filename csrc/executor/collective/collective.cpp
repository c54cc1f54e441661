#include "executor/collective/collective.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "base/recycling_allocator.h"
#include "executor/collective/fingerprint.h"
#include "kernels/cpu/reduce.h"
#include "ledger/call_signature.h"
#include "ledger/flight_record.h"
#include "ledger/name_table.h"
#include "transport/run/runtime.h"
#include "transport/ucx/tag.h"

namespace q7x2 {
namespace {

static_assert(Plan::kMaxMessages == tag::kMaxMessages);

constexpr size_t kLine = 64;

size_t total_bytes(const std::vector<Region>& regions) {
  size_t bytes = 0;
  for (const Region& region : regions) bytes += region.bytes;
  return bytes;
}

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
      call_(std::move(planned.call)),
      keep_alive_(std::move(keep_alive)),
      entry_(std::move(planned.entry)),
      plans_(std::move(planned.plans)),
      fingerprint_(fingerprint_of(call_)) {
  if (is_reduction(call_.collective)) {
    check_reducible(call_.dtype, call_.reduce, call_.divisor);
  }
  // What is counted is selected in the caller's thread. Without a codec the number of the call
  // decides, which it does not have yet.
  if (call_.coding && entry_->is_settled()) adopt(entry_->choice(), planned.counting != nullptr);
  if (planned.counting) counting_ = sum_of_counts(std::move(planned.counting));
}

CollectiveTask::~CollectiveTask() {
  // Only after an error: the pool wants the reactor's lock, which is not held here.
  for (const Place& place : places_) {
    ScratchPool::destroy(place.own.pooled);
  }
}

void CollectiveTask::adopt(const Choice& choice, bool counts) {
  choice_ = choice;
  fabric_ = entry_->fabric();
  slicing_ = Slicing(call_, choice_);
  if (call_.coding) prepare_coder(counts);
  if (group().messages().channel() != nullptr && !call_.is_direct) {
    staging_ = SharedStaging(*choice_.plan, group(), &memory_);
  }
}

// Tasks of a group begin in their order. So whatever precedes this call has brought its news, and
// nothing that precedes a later one.
bool CollectiveTask::has_plan() {
  if (no_prerequisite_) std::rethrow_exception(no_prerequisite_);
  if (choice_.plan) return true;
  if (prerequisite_) {
    if (!prerequisite_->done()) return false;
    take_news();
  }
  if (!entry_->is_settled()) return false;
  choice_index_ = entry_->refinement().choice_of(number_);
  is_measured_ = entry_->refinement().measures(number_);
  adopt(plans_->choice(*entry_, choice_index_), false);
  return true;
}

bool CollectiveTask::is_hopeless() const {
  const bool has_failed = prerequisite_ && prerequisite_->done() && prerequisite_->error();
  return has_failed || group().departure().find_missing(sequence()) >= 0;
}

void CollectiveTask::describe(FlightRecord& record) const {
  record.collective = call_.collective;
  record.dtype = call_.dtype;
  record.reduce = call_.reduce;
  record.peer = call_.root;
  record.is_internal = !call_of_prerequisite_.expired();
  record.input_bytes = total_bytes(call_.input);
  record.output_bytes = total_bytes(call_.output);
  record.fingerprint = fingerprint_;
}

void CollectiveTask::report(FlightRecord& record, NameTable& names) const {
  const CollectiveTask& task = run_by();
  if (task.choice_.plan) {
    record.plan = names.number_of(task.choice_.plan->algorithm);
    record.predicted = static_cast<float>(task.choice_.seconds);
  }
  if (call_.coding) record.codec = names.number_of(call_.coding.codec->name());
  record.work = task.work_;
  record.slices = static_cast<uint32_t>(task.dag_.num_slices());
  record.slices_done = static_cast<uint32_t>(task.dag_.slices_done());
}

std::string CollectiveTask::name() const {
  if (const auto call = call_of_prerequisite_.lock()) return call->name();
  FlightRecord record;
  describe(record);
  record.sequence = sequence();
  std::string details;  // in which calls of two ranks may differ
  if (call_.divisor > 1) details += ", divided by " + std::to_string(call_.divisor);
  if (call_.coding) details += ", codec " + call_.coding.codec->name();
  if (!call_.algorithms.empty()) details += ", algorithms " + call_.algorithms;
  if (call_.is_direct) details += ", between devices";
  return call_signature(record, call_.title, details) + " on rank " +
         std::to_string(group().rank()) + " of " + std::to_string(group().world_size()) +
         " in group '" + group().membership().name() + "'";
}

// Collectives of a group take staging in their order, on every rank, and never wait for more while
// they run: what the oldest one needs is held by none that waits for it.
bool CollectiveTask::reserve(Locked& locked) {
  if (is_hopeless()) return true;
  if (offload_ && !offload_->is_decided(locked)) {
    record(locked).warn_at = TimePoint::max();  // the attempt says who is late
    return false;
  }
  if (attempt_ && !attempt_->has_slots()) return false;
  if (was_served() || is_declined()) return true;
  if (!has_plan() || (counting_ && !cut_by_counts())) return false;
  ShmChannel* const channel = group().messages().channel();
  const size_t slices = slicing_.num_slices();
  const bool is_inline = slicing_.bytes() <= ShmChannel::kInlineBytes && !coder_;
  if (channel == nullptr || slices == 0 || !staging_.is_needed() || staging_ || is_inline) {
    return true;
  }
  size_t stage_bytes = std::min(choice_.part_bytes, (slicing_.bytes() + kLine - 1) / kLine * kLine);
  if (coder_) stage_bytes = std::max(stage_bytes, coder_->max_bytes());
  const size_t places = std::min(window(), slices);
  return staging_.reserve(*channel, places, stage_bytes);
}

void CollectiveTask::start(Locked& locked) {
  group().agreement().remember(locked, sequence(), fingerprint_);
  if (prerequisite_ && prerequisite_->error()) {
    go_wrong(locked, *prerequisite_->error());
    return;
  }
  if (was_served() || is_declined()) {
    finish(locked);
    return;
  }
  const Plan& plan = *choice_.plan;
  if (slicing_.num_slices() == 0 || plan.ops.empty() || is_idle()) {
    finish(locked);
    return;
  }
  contribute(locked);
  dag_ = DagWindow(plan, slicing_.num_slices(), staging_ ? staging_.places() : window(), &memory_);
  if (voted_on_) record(locked).warn_at = TimePoint::max();
  if (residence_->enters()) {
    moving_ =
        std::make_unique<ResidenceJob>(*residence_, run_of_residence(), Residence::Way::kIn, *this);
  }
  awaits_inputs(locked);  // what arrives from now on is told
  if (offload_) restore(locked);
  inputs_arrived(locked);
}

size_t CollectiveTask::window() const {
  const auto window = static_cast<size_t>(choice_.window);
  return attempt_ ? std::min(window, attempt_->slots()) : window;
}

void CollectiveTask::inputs_arrived(Locked& locked) {
  if (planning_ || restoring_ || (voted_on_ && awaits_attempt(locked))) return;
  if (moving_) {
    if (!is_moving_ && residence_->has_arrived()) move(locked);
    return;
  }
  if (selection_) {
    if (!is_selecting_ && residence_->has_arrived()) begin_selection(locked);
    return;
  }
  admit_slices(locked);
  run_ready(locked);
}

void CollectiveTask::set_residence(std::unique_ptr<Residence> residence) {
  chosen_residence_ = std::move(residence);
  residence_ = chosen_residence_.get();
  set_inputs(residence_->inputs());
  if (choice_.plan) residence_->prepare(run_of_residence());
}

void CollectiveTask::move(Locked& locked) {
  is_moving_ = true;
  enqueue(locked, *moving_, slicing_.bytes());
}

void CollectiveTask::moved(Locked& locked) {
  moving_->check();
  if (!moving_->is_over()) {
    move(locked);
    return;
  }
  if (std::unique_ptr<Residence> replacement = moving_->take_replacement()) {
    locked.drop_later(std::shared_ptr<Residence>(std::move(chosen_residence_)));
    chosen_residence_ = std::move(replacement);
    residence_ = chosen_residence_.get();
  }
  moving_.reset();
  if (dag_.done()) {
    conclude(locked);
    return;
  }
  if (residence_->selects()) selection_.reset();
  inputs_arrived(locked);
}

void CollectiveTask::prepare_places() {
  const Plan& plan = *choice_.plan;
  began_ = plans_->clock().begin(is_measured_);
  places_.reserve(dag_.window());
  const Residence::Run run = run_of_residence();
  for (size_t i = 0; i < dag_.window(); ++i) {
    Place& place = places_.emplace_back(&memory_);
    place.scratch_at.resize(plan.num_scratch);
    place.coded_at.resize(plan.num_coded);
    if (staging_) place.staged.resize(plan.num_stages);
    place.own = residence_->memory(run, i, group().runtime().scratch());
  }
}

void CollectiveTask::admit_slices(Locked& locked) {
  while (dag_.can_admit()) {
    if (residence_->arrived() < slicing_.bytes_before(dag_.admitted() + 1)) return;
    if (places_.empty()) prepare_places();
    const uint32_t index = dag_.place_of(dag_.admitted());
    if (staging_ && !staging_.is_returned(index)) {
      if (!is_stalled_) {
        is_stalled_ = true;
        group().messages().stall(locked, *this);
      }
      return;
    }
    Place& place = places_[index];
    place.slice = dag_.admitted();
    place.staged.assign(place.staged.size(), StageState::kNo);
    for (size_t i = 0; i < place.scratch_at.size(); ++i) {
      place.scratch_at[i] = own_scratch(place, i);
    }
    for (size_t i = 0; i < place.coded_at.size(); ++i) {
      place.coded_at[i] = {own_coded(place, i), 0};
    }
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
  // Ops that complete at once make others ready: a work list, not recursion.
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
  const Op& op = op_of(step);
  const size_t slice = places_[step.place].slice;
  const size_t length = slicing_.part(op.length_of, slice).bytes;
  // Of uneven parts each pair exchanges the first slice, even if it is empty: so a rank that
  // expects nothing notices one that sends it something, and the other way round.
  const bool is_message = op.kind == OpKind::kSend || op.kind == OpKind::kRecv;
  if (length == 0 && !(call_.uneven && is_message && slice == 0)) {
    complete(locked, step);
    return;
  }
  OpJob* job = nullptr;
  switch (op.kind) {
    case OpKind::kSend:
      send(locked, step, length);
      return;
    case OpKind::kRecv:
      receive(locked, step, length);
      return;
    case OpKind::kCopy:
      job = coder_ && touches_coded(op) ? copy_coded(locked, step, length)
                                        : copy(locked, step, length);
      break;
    case OpKind::kReduce:
      job = coder_ && touches_coded(op) ? fold_coded(locked, step, length)
                                        : fold(locked, step, length);
      break;
  }
  if (job != nullptr) {
    launch(locked, *job);
  } else if (!is_over(locked)) {
    complete(locked, step);
  }
}

void CollectiveTask::complete(Locked& locked, Step step) {
  if (!dag_.complete(step)) return;
  Place& place = places_[step.place];
  for (const auto& [source, message] : place.held) {
    group().messages().release_message(locked, source, message);
  }
  place.held.clear();
  if (dag_.done()) {
    complete_last_slice(locked);
    return;
  }
  const size_t final_bytes = slicing_.bytes_before(dag_.slices_done());
  if (slicing_.is_flat()) set_ready(locked, final_bytes);
  residence_->finish(final_bytes);
  admit_slices(locked);
}

void CollectiveTask::complete_last_slice(Locked& locked) {
  const int64_t took = plans_->clock().end(is_measured_, began_);
  if (is_measured_) entry_->record(choice_index_, slicing_.bytes(), took);
  for (const Place& place : places_) {
    group().runtime().scratch().release(place.own.pooled);
  }
  places_.clear();
  if (staging_) staging_.retire(locked, group());
  if (!residence_->leaves()) {
    conclude(locked);
    return;
  }
  moving_ =
      std::make_unique<ResidenceJob>(*residence_, run_of_residence(), Residence::Way::kOut, *this);
  move(locked);
}

void CollectiveTask::conclude(Locked& locked) {
  if (coder_ && (coder_->met_nonfinite() || residence_->met_nonfinite())) {
    fail(locked, Error(ErrorCode::kNotFinite, "infinities or NaNs in the result of " + name()));
    return;
  }
  // With one it stays as it is until the group fails, with the calls of both ranks.
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

// No job runs any more.
void CollectiveTask::let_go(Locked& locked) {
  for (Place& place : places_) {
    for (const auto& [source, message] : place.held) {
      group().messages().release_message(locked, source, message);
    }
    place.held.clear();
  }
  if (staging_) staging_.retire(locked, group());
}

}  // namespace q7x2
