// Calls that servers attempt: the attempt, the vote on it, and the call (servers/offloaded_call.h).
#include <utility>

#include "executor/collective/collective.h"
#include "servers/server_group.h"

namespace q7x2 {

void CollectiveTask::set_vote(Vote vote) {
  set_inputs(std::move(vote.cast));
  voted_on_ = std::move(vote.servers);
  call_of_prerequisite_ = std::move(vote.call);
  is_prerequisite_ = true;
}

void CollectiveTask::published(Locked& locked) {
  if (attempt_) attempt_->published(locked, error());
  if (error()) let_go(locked);
}

bool CollectiveTask::awaits_attempt(Locked& locked) {
  if (awaits_inputs(locked)) return true;
  if (!voted_on_->is_dropped(locked)) return false;
  finish(locked);
  return true;
}

void CollectiveTask::restore(Locked& locked) {
  restoring_ = offload_->restoring();
  if (restoring_) enqueue(locked, *restoring_, offload_->restored_bytes());
}

}  // namespace q7x2
