#include "executor/attempt.h"

#include "executor/annex.h"
#include "transport/completion_queue.h"

namespace q7x2 {

void Attempt::put_to_vote(Locked& locked, Ballot ballot) {
  if (is_done_) {
    cast(locked, std::move(ballot));
  } else {
    ballot_ = std::move(ballot);
  }
}

void Attempt::published(Locked& locked, const std::optional<Error>& error) {
  is_done_ = true;
  error_ = error;
  if (ballot_.cast) cast(locked, std::exchange(ballot_, {}));
}

void Attempt::cast(Locked& locked, Ballot ballot) const {
  *ballot.word = ballot.annex->vote_of(*this, error_);
  CompletionQueue::post(ballot.cast->arrival());
  locked.drop_later(std::move(ballot.annex));
}

}  // namespace q7x2
