// How ranks leave a group in good order, and what that means for the others.
#include <algorithm>

#include "transport/group/group.h"
#include "transport/run/runtime.h"

namespace q7x2 {

void Group::leave() {
  Locked locked(runtime_.lock());
  if (closed_) {
    return;
  }
  closed_ = true;
  fail_tasks(locked,
             Error(ErrorCode::kAborted, "the group was shut down while this was in progress"));
  if (!error_) tell_all(locked, ControlType::kGoodbye);
  runtime_.flights().close(locked, flight_);
  runtime_.groups().close(locked, slot_, ended_late());
  runtime_.tasks().drain(locked);
}

void Group::tell_all(Locked& locked, ControlType type) {
  for (int r = 0; r < world_size(); ++r) {
    if (r == rank() || has_left(r) || !members_.peer(r).life.is_alive()) continue;
    Peer& peer = members_.peer(r);
    Control control = control_to(r, type);
    control.sequence = sequence_;
    control.comes_twice =
        type == ControlType::kGoodbye && wire(r) == Wire::kPrivate && peer.rail.is_open();
    runtime_.controls().send(locked, peer, control);
    if (control.comes_twice) runtime_.controls().send(locked, peer, control, Wire::kPrivate);
  }
}

// Two ranks may each have begun what the other one never will. Without it each would stay for the
// other.
void Group::say_last_call(Locked& locked) {
  if (!closed_ && !error_) tell_all(locked, ControlType::kLastCall);
}

bool Group::is_missed(Locked& locked, Task& task) const {
  if (task.done() || !is_usable(locked)) return false;
  if (task.takes_turn()) {
    const uint64_t sequence = task.record(locked).sequence;
    return std::ranges::none_of(last_calls_,
                                [&](const auto& begun) { return begun && *begun <= sequence; });
  }
  const PendingRequest* const request = task.record(locked).requests.first();
  return request != nullptr && !request->is_receive &&
         !last_calls_[static_cast<size_t>(request->peer)];
}

// One on the shared network overtakes what is still on its way over a private link.
void Group::hear_goodbye(Locked& locked, const Control& goodbye) {
  const bool is_first = goodbye.comes_twice && half_departed_.insert(goodbye.sender).second;
  if (!is_first) peer_left(locked, goodbye.sender, goodbye.sequence);
}

// A collective that it has not begun cannot end. Of those that it has begun, it has sent all that
// others need.
void Group::peer_left(Locked& locked, int rank, uint64_t sequence) {
  if (matcher_) {
    progress_shared(locked);  // what it wrote before it left
    matcher_->drop(locked, rank);
  }
  departed_[static_cast<size_t>(rank)] = sequence;
  first_missed_ = std::min(first_missed_, sequence);
  std::vector<std::shared_ptr<Task>> stranded;
  for (const auto& task : runtime_.tasks().active(locked)) {
    if (&task->group() != this || task->is_over(locked)) {
      continue;
    }
    bool needs_it = task->takes_turn() && task->record(locked).sequence >= sequence;
    for (const PendingRequest* p = task->record(locked).requests.first(); p != nullptr && !needs_it;
         p = p->next) {
      needs_it = p->peer == rank;
    }
    if (needs_it) {
      stranded.push_back(task);
    }
  }
  for (const auto& task : stranded) {
    task->stranded(locked, left_error(rank, *task));
  }
  // It drops what was on its way to it, so that these tasks are done.
  if (!stranded.empty()) tell(locked, rank, left_error(rank, *stranded.front()));
}

/// A rank that left before it began collective number `sequence`; -1: there is none.
int Group::find_departed(uint64_t sequence) const {
  const auto found = std::find_if(departed_.begin(), departed_.end(),
                                  [&](const auto& begun) { return begun && *begun <= sequence; });
  return found == departed_.end() ? -1 : static_cast<int>(found - departed_.begin());
}

Error Group::left_error(int rank, const Task& task) const {
  return Error(ErrorCode::kPeerLeft,
               describe(rank) + " has left the group, but " + task.name() + " needs it", rank);
}

}  // namespace q7x2
