#include "transport/group/group.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "transport/group/group_failure.h"
#include "transport/group/group_host.h"
#include "transport/peer/control_plane.h"
#include "transport/peer/peer_table.h"
#include "transport/ucx/tag.h"

namespace q7x2 {
namespace {

/// `error` with the name of `task` in its message.
Error named(const Error& error, const Task& task) {
  const std::string text = error.what();
  const std::string name = task.name();
  return {error.code(), text.find(name) == std::string::npos ? name + ": " + text : text,
          error.rank()};
}

}  // namespace

Group::Group(Runtime& runtime, ReactorLock& lock, int slot, Membership members, TimePoint begun)
    : runtime_(runtime),
      lock_(lock),
      slot_(slot),
      members_(std::move(members)),
      begun_(begun),
      departure_(world_size()),
      links_(slot, members_, departure_),
      messages_(slot, members_, departure_, links_, turns_),
      agreement_(*this, members_, turns_) {}

Group::~Group() {
  leave();
  Locked locked(lock_);
  messages_.close(locked);
}

void Group::accompany(const std::shared_ptr<Group>& other) {
  const Locked locked(lock_);
  companion_ = other;
}

// ---------------------------------------------------------------------------------------- tasks

void Group::submit(Locked& locked, const std::shared_ptr<Task>& task) {
  if (!closed_) locked.group_host().admit(locked, *task, slot_);
  if (error_ || closed_) {
    if (task->takes_turn()) turns_.skip(locked, *task);
    task->fail(locked, error_
                           ? Error(error_->code(),
                                   task->name() + ": the group has failed: " + error_->what(),
                                   error_->rank())
                           : Error(ErrorCode::kAborted, task->name() + ": the group is shut down"));
  } else if (task->takes_turn() && !turns_.submit(locked, task)) {
    locked.group_host().submitted(locked, *task);
    messages_.update_sharing(locked);
  } else {
    begin(locked, task);
  }
}

void Group::begin(Locked& locked, const std::shared_ptr<Task>& task) {
  Task::Record& record = task->record(locked);
  record.next_inquiry = CallAgreement::first_inquiry(*task);
  if (task->takes_turn()) {
    turns_.begin(locked, *task);
    messages_.update_sharing(locked);
  }
  record.is_started = true;
  if (record.flight_group != 0 && task->is_recorded()) {
    // A task that did not have to wait for its turn need not read the clock.
    record.started = record.has_waited ? Clock::now() : task->submitted();
    record.waits.begin(record.started);
  }
  if (task->takes_turn()) {
    if (const Error* const failed = failed_calls_.find(record.sequence)) {
      task->fail(locked, named(*failed, *task));
      return;
    }
    const int missing = departure_.find_missing(record.sequence);
    if (missing >= 0) {
      task->stranded(locked, left_error(members_, missing, task->name()));
      return;
    }
  }
  task->start(locked);
  locked.group_host().started(locked, *task);
}

void Group::start_waiting(Locked& locked) {
  for (;;) {
    std::shared_ptr<Task> next;
    try {
      next = turns_.take_next(locked);
      if (!next) return;
      begin(locked, next);
    } catch (const std::exception& exception) {
      const Error error = failure_of(members_, exception);
      if (!next) {
        fail(locked, error);
        return;
      }
      fail_call(locked, *next, error);
    }
  }
}

void Group::task_done(Locked& locked, Task& task) {
  if (!task.takes_turn() || !turns_.end(locked, task)) return;
  messages_.forget_stalled(locked, task);
  start_waiting(locked);
  messages_.update_sharing(locked);
}

std::vector<std::shared_ptr<Task>> Group::unfinished(Locked& locked) {
  std::vector<std::shared_ptr<Task>> mine;
  for (const auto& task : locked.group_host().active_tasks(locked)) {
    if (&task->group() == this && !task->is_over(locked)) mine.push_back(task);
  }
  return mine;
}

void Group::fail_tasks(Locked& locked, const Error& error) {
  turns_.drop_waiting(locked);
  for (const auto& task : unfinished(locked)) {
    task->fail(locked, named(error, *task));
  }
}

bool Group::progress_shared(Locked& locked) {
  if (messages_.channel() == nullptr) return false;
  bool any = false;
  try {
    any = messages_.progress(locked);
    if (turns_.has_waiting()) {
      messages_.free_returned(locked);
      start_waiting(locked);
    }
  } catch (const std::exception& exception) {
    fail(locked, failure_of(members_, exception));
    any = true;
  }
  locked.group_host().drain(locked);
  return any;
}

void Group::housekeep(Locked& locked, TimePoint now) {
  if (error_) messages_.drop_arrived(locked);  // messages that came over a private link
  if (!failed_calls_.is_empty()) drop_failed_calls(locked);
  agreement_.housekeep(locked, now);
}

// ------------------------------------------------------------------------------------- failures

std::optional<Error> Group::error() {
  const Locked locked(lock_);
  return error_;
}

void Group::check() {
  if (const std::optional<Error> failure = error()) throw Error(*failure);
}

void Group::abort(const Error& error) {
  Locked locked(lock_);
  fail(locked, error);
  locked.group_host().drain(locked);
}

void Group::fail(Locked& locked, const Error& error) {
  if (closed_ || error_) return;
  error_ = error;
  locked.group_host().failed(locked, slot_, error);
  if (error.code() == ErrorCode::kPeerFailed && error.rank() >= 0 && error.rank() < world_size() &&
      error.rank() != rank()) {
    locked.group_host().blame(locked, slot_, members_.peer(error.rank()));
  }
  log(Level::kInfo, "group '" + members_.name() + "' has failed on rank " + std::to_string(rank()) +
                        ": " + error.what());
  fail_tasks(locked, error);
  for (const int r : links_.audience(locked)) links_.tell(locked, r, error);
  if (std::shared_ptr<Group> other = companion_.lock()) {
    other->fail(locked, error);
    locked.drop_later(std::move(other));
  }
}

// ----------------------------------------------------------------------------- calls that fail

// A task that waits for its turn fails when it begins, on this rank as on the others. Until then it
// still gets the results of earlier calls that all ranks must have.
void Group::fail_call(Locked& locked, Task& task, const Error& error) {
  const bool waits = task.takes_turn() && turns_.is_waiting(task);
  const bool is_alone = task.can_fail_alone(waits);
  const uint64_t number = task.record(locked).sequence;
  if (!waits || !is_alone) task.fail(locked, named(error, task));
  if (is_alone) {
    note_failed_call(locked, number, error);
  } else {
    fail(locked, error);
  }
}

void Group::note_failed_call(Locked& locked, uint64_t number, const Error& error) {
  if (!is_usable(locked) || failed_calls_.find(number) != nullptr) return;
  const std::set<int> told = links_.audience(locked);
  failed_calls_.add(number, error, told);
  turns_.stay_near(failed_calls_.oldest_unconfirmed());
  // The task must have sent its last message before the other ranks are told.
  if (Task* const task = turns_.find_running(locked, number)) {
    task->fail(locked, named(error, *task));
  }
  for (const int r : told) links_.tell(locked, r, error, number);
  messages_.drop_collective(locked, number);
}

void Group::hear_failed_call(Locked& locked, const Control& control) {
  if (!is_usable(locked)) return;
  const uint64_t number = control.sequence;
  const Error error(control.code, control.text,
                    control.subject < world_size() ? control.subject : -1);
  progress_shared(locked);  // handles what other ranks wrote before
  const bool is_forgotten = failed_calls_.is_forgotten(number, turns_.num_begun());
  if (!is_forgotten) note_failed_call(locked, number, error);
  if (is_forgotten || !failed_calls_.confirm(number, control.sender)) {
    links_.tell(locked, control.sender, error, number);
  }
  messages_.drop_collective(locked, number, control.sender);
  resume(locked);
}

// Drops what has arrived since for calls whose numbers are not in use again.
void Group::drop_failed_calls(Locked& locked) {
  const uint64_t begun = turns_.num_begun();
  failed_calls_.prune(begun);
  failed_calls_.for_each([&](uint64_t number) {
    if (number < begun + tag::kSequenceCycle / 2) messages_.drop_collective(locked, number);
  });
}

// A rank has confirmed a failed call, so collectives that are far ahead of that call may begin.
void Group::resume(Locked& locked) {
  turns_.stay_near(failed_calls_.oldest_unconfirmed());
  if (turns_.has_waiting()) start_waiting(locked);
}

// ------------------------------------------------------------------------------ ranks that leave

void Group::leave() {
  Locked locked(lock_);
  if (closed_) return;
  closed_ = true;
  const uint64_t begun = turns_.num_begun();
  const Unended unended = turns_.unended(locked);
  fail_tasks(locked,
             Error(ErrorCode::kAborted, "the group was shut down while this was in progress"));
  if (!error_) tell_all(locked, ControlType::kGoodbye, begun, unended);
  // A late rank may not receive what is sent to it.
  locked.group_host().close(locked, slot_, error_ && error_->code() == ErrorCode::kTimeout);
  locked.group_host().drain(locked);
}

void Group::tell_all(Locked& locked, ControlType type, uint64_t begun, const Unended& unended) {
  for (int r = 0; r < world_size(); ++r) {
    if (!links_.is_member(locked, r)) continue;
    Control control = links_.control_to(r, type);
    control.sequence = begun;
    control.unended = unended;
    const auto other = type == ControlType::kGoodbye ? links_.other_wire(r) : std::optional<Wire>();
    control.comes_twice = other.has_value();
    links_.send(locked, r, control);
    if (other) locked.controls().send(locked, members_.peer(r), control, *other);
  }
}

// Two ranks that leave may each have begun a collective that the other one never will. Without this
// message each would wait for the other.
void Group::say_last_call(Locked& locked) {
  if (is_usable(locked)) tell_all(locked, ControlType::kLastCall, turns_.num_begun());
}

void Group::peer_left(Locked& locked, const Control& goodbye) {
  const int rank = goodbye.sender;
  progress_shared(locked);  // handles what it wrote before it left
  messages_.drop(locked, rank);
  departure_.leave(rank, goodbye.sequence, goodbye.unended);
  failed_calls_.forget_rank(rank);
  bool is_needed = false;
  for (const auto& task : std::vector(locked.group_host().active_tasks(locked))) {
    if (&task->group() != this || !needs(locked, *task, rank)) continue;
    const Error error = left_error(members_, rank, task->name());
    if (!task->is_over(locked)) task->stranded(locked, error);
    // The rank that left then drops what was sent to it, so that the sends of these tasks complete.
    if (!std::exchange(is_needed, true)) links_.tell(locked, rank, error);
  }
  resume(locked);
}

bool Group::needs(Locked& locked, Task& task, int rank) const {
  if (task.takes_turn() && departure_.misses(rank, task.record(locked).sequence)) return true;
  for (const PendingRequest* p = task.record(locked).requests.first(); p != nullptr; p = p->next) {
    if (p->peer == rank) return true;
  }
  return false;
}

// -------------------------------------------------------------------------------- what peers say

void Group::handle(Locked& locked, const Control& control) {
  // Ignores a message whose sender is not the member that it names, or names this rank.
  if (control.sender < 0 || control.sender >= world_size() || control.sender == rank() ||
      control.receiver != rank() || members_.peer_info(control.sender).process != control.process) {
    return;
  }
  switch (control.type) {
    case ControlType::kHello:
      if (is_usable(locked)) links_.connect(locked, control.sender);
      return;
    case ControlType::kGoodbye:
      if (departure_.is_last_goodbye(control.sender, control.comes_twice)) {
        peer_left(locked, control);
      }
      return;
    case ControlType::kLastCall:
      departure_.announce(control.sender, control.sequence);
      return;
    case ControlType::kAbort:
      progress_shared(locked);  // handles what other ranks wrote before
      fail(locked, Error(control.code, control.text,
                         control.subject < world_size() ? control.subject : -1));
      // A rank's abort arrives after everything that it had sent before. These messages must be
      // received, or its sends would never complete.
      messages_.drop_arrived(locked);
      return;
    case ControlType::kInquiry:
      agreement_.hear_inquiry(locked, control);
      return;
    case ControlType::kAnswer:
      agreement_.hear_answer(locked, control);
      return;
    case ControlType::kFailedCall:
      hear_failed_call(locked, control);
      return;
  }
}

// ----------------------------------------------------------------- what the agreement asks about

std::string Group::call_text(Locked& locked, uint64_t sequence) const {
  return locked.group_host().call_text(locked, slot_, sequence);
}

std::string Group::life_of(Locked& locked, int rank) const {
  return locked.peers().why_late(locked, members_.peer(rank));
}

int Group::awaited_elsewhere(Locked& locked) const {
  const Peer* const peer = locked.group_host().awaited_peer(locked);
  return peer == nullptr ? -1 : members_.rank_of(peer->info.process);
}

}  // namespace q7x2
