#include "servers/offload_attempt.h"

#include "servers/server_group.h"
#include "transport/task/completion_queue.h"

namespace q7x2 {

void OffloadAttempt::put_to_vote(Locked& locked, Ballot ballot) {
  if (is_done_) {
    cast(locked, std::move(ballot));
  } else {
    ballot_ = std::move(ballot);
  }
}

void OffloadAttempt::published(Locked& locked, const std::optional<Error>& error) {
  is_done_ = true;
  error_ = error;
  if (ballot_.cast) cast(locked, std::exchange(ballot_, {}));
}

void OffloadAttempt::cast(Locked& locked, Ballot ballot) const {
  *ballot.word = ballot.servers->vote_of(*this, error_);
  CompletionQueue::post(ballot.cast->arrival());
  locked.drop_later(std::move(ballot.servers));
}

}  // namespace q7x2
