// Calls that servers attempt: the attempt, the vote on it, and the call (servers/offloaded_call.h).
#include <utility>

#include "executor/collective/collective.h"
#include "servers/server_group.h"

namespace q7x2 {

void CollectiveTask::set_vote(Vote vote) {
  set_device(std::move(vote.cast), std::shared_ptr<OutputGate>());
  voted_on_ = std::move(vote.servers);
  call_of_prerequisite_ = std::move(vote.call);
}

void CollectiveTask::published(Locked& locked) {
  if (attempt_) attempt_->published(locked, error());
}

bool CollectiveTask::awaits_attempt(Locked& locked) {
  if (!voted_on_) return false;
  if (!device_inputs_->is_open()) return true;
  if (!voted_on_->is_dropped(locked)) return false;
  finish(locked);
  return true;
}

void CollectiveTask::restore(Locked& locked) {
  if (!offload_) return;
  restoring_ = offload_->restoring();
  if (restoring_) enqueue(locked, *restoring_, offload_->restored_bytes());
}

}  // namespace q7x2
