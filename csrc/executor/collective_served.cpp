// Calls that servers attempt (executor/annex.h): the vote on the attempt, and what follows from it.
//
// The vote is a precursor of the call. It begins when the attempt is done on this rank. So when the
// vote is complete, the attempt is done on all ranks, and nothing touches their memory any more.
// Once the annex is dropped, votes say nothing, and each call only waits for the end of its
// attempt.
//
// An attempt that the servers have no slots for ends at once, and touches no memory.
#include <cstring>
#include <utility>

#include "executor/annex.h"
#include "executor/collective.h"
#include "executor/slot_grant.h"
#include "transport/completion_queue.h"
#include "transport/runtime.h"

namespace q7x2 {

void CollectiveTask::set_served(std::shared_ptr<ServedCall> served) {
  served_ = std::move(served);
}

std::shared_ptr<CollectiveTask> CollectiveTask::vote(Locked& locked) {
  CollectiveCall call;
  call.collective = Collective::kAllReduce;
  call.dtype = DType::kUInt8;
  call.reduce = ReduceKind::kMax;
  const auto task = before_this(std::move(call), 1, book_->reviewer());
  task->voted_on_ = served_->annex;
  const auto latch = std::make_shared<InputLatch>(group().runtime().completions());
  task->set_device(latch, std::shared_ptr<OutputGate>());
  CollectiveTask& attempt = *served_->attempt;
  attempt.pending_vote_ = {task, latch};
  if (attempt.done()) attempt.begin_vote(locked);
  return task;
}

bool CollectiveTask::has_slots() {
  // If it failed, so will this task with its group.
  if (!grant_->done() || grant_->error()) return false;
  is_declined_ = grant_->slots() == 0;
  return true;
}

void CollectiveTask::published(Locked& locked) {
  if (pending_vote_.vote) begin_vote(locked);
}

void CollectiveTask::begin_vote(Locked& locked) {
  PendingVote pending = std::exchange(pending_vote_, {});
  pending.vote->memory()[0] = static_cast<std::byte>(pending.vote->voted_on_->vote_of(*this));
  CompletionQueue::post(pending.latch->arrival());
  locked.drop_later(std::move(pending.vote));
}

bool CollectiveTask::take_verdict(Locked& locked) {
  if (!precursor_) return true;
  if (!precursor_->done() || precursor_->error()) return false;
  Annex& annex = *served_->annex;
  if (!annex.is_dropped(locked)) {
    was_served_ = annex.take_verdict(locked, std::to_integer<uint8_t>(precursor_->memory()[0]));
  }
  precursor_.reset();
  return true;
}

bool CollectiveTask::awaits_attempt(Locked& locked) {
  if (!voted_on_) return false;
  if (!device_inputs_->is_open()) return true;
  if (!voted_on_->is_dropped(locked)) return false;
  finish(locked);
  return true;
}

void CollectiveTask::restore(Locked& locked) {
  if (!served_ || served_->saved.data == nullptr || served_->attempt->is_declined()) return;
  restoring_ = std::make_unique<RestoringJob>(*this);
  enqueue(locked, *restoring_, served_->saved.bytes);
}

void CollectiveTask::RestoringJob::work() {
  const Region& saved = task_.served_->saved;
  std::memcpy(task_.call_.input[0].data, saved.data, saved.bytes);
}

}  // namespace q7x2
