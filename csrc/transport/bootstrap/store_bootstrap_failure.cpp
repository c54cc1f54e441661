// Which ranks cannot make the group, and how the others hear of it.
#include <string_view>

#include "transport/bootstrap/store_bootstrap.h"

namespace q7x2 {
namespace {

using std::chrono::milliseconds;

// Rank 0 often owns the store, so it stays until the others have read why it fails.
constexpr milliseconds kLinger{500};
// How long a rank that has waited in vain waits for rank 0 to say who is missing.
constexpr milliseconds kMoment{30};

}  // namespace

// -------------------------------------------------------------------------------------- to hear

void StoreBootstrap::attend() {
  look_up();
  heed_losses(/*asks=*/false);
}

/// Away from the store.
void StoreBootstrap::look_up() {
  options_.check_interrupt();
  if (check_ == nullptr) {
    return;
  }
  try {
    (*check_)();
  } catch (const Error& failure) {
    throw error(failure.code(), failure.what(), failure.rank());
  }
}

/// After the commit. Never true: throws the failure.
bool StoreBootstrap::look_for_failure(bool) {
  if (board_.look().phase == Phase::kFailed) {
    const std::string record = board_.body();
    if (options_.rank == 0) {
      fail(decode_failure(record));
    }
    raise(record);
  }
  return false;
}

void StoreBootstrap::raise(const std::string& record) {
  over_ = true;
  store_.set(board_.key("heard", options_.rank), "");
  throw Error(decode_failure(record));
}

Error StoreBootstrap::better_known(const Error& failure) noexcept {
  if (!committed_ || over_ || options_.rank == 0 || failure.code() != ErrorCode::kTimeout) {
    return failure;
  }
  try {
    for (const auto until = Clock::now() + kMoment; Clock::now() < until;) {
      look_for_failure(/*is_thorough=*/true);
      store_.pause(options_.pause);
    }
  } catch (const Error& told) {
    return over_ ? told : failure;
  } catch (const std::exception&) {
    // An interrupt. The failure comes first.
  }
  return failure;
}

// -------------------------------------------------------------------------------------- to tell

void StoreBootstrap::fail(const Error& reason) noexcept {
  const bool alone = options_.size < 2 || options_.rank < 0 || options_.rank >= options_.size;
  if (over_ || alone) {
    return;
  }
  over_ = true;
  try {
    reason_ =
        titled(reason, cannot_make(options_.rank, options_.size, options_.group), options_.rank);
    tell_first();
  } catch (const std::exception&) {
    // The store does not answer, or too slowly. `stay` tries again.
  }
}

/// Makes the failure the state of this rank's epoch, unless that is over. The last answer of the
/// store may be missing, so this rank may not know the state. False: the epoch is committed.
bool StoreBootstrap::mark(Phase phase) {
  while (!board_.advance(phase, encode_failure(*reason_))) {
    const Phase found = board_.state().phase;
    if (board_.is_superseded() || found == Phase::kFailed || found == Phase::kOrphaned) return true;
    if (found == Phase::kCommitted) return false;
  }
  return true;
}

void StoreBootstrap::tell_first() {
  const auto patience = [&](bool waits) { return waits ? options_.patience : milliseconds(0); };
  // This rank may not have heard that it was committed.
  const bool may_be_committed = has_acknowledged_ || (options_.rank == 0 && has_joined_);
  if (!committed_ && has_acknowledged_ && !orphaned_ && board_.look().phase == Phase::kCommitted &&
      !board_.is_superseded()) {
    committed_ = true;
    board_.commit();
  }
  if (orphaned_) {
    if (mark(Phase::kOrphaned) || !may_be_committed) {
      has_told_ = true;
      return;
    }
    orphaned_.reset();
    committed_ = true;
    board_.commit();
  }
  if (!committed_ && options_.rank == 0) {
    // A rank that comes later would wait for this one, so this one waits for it.
    tells_until_ = Clock::now() + patience(coming_ > 0);
    if (!has_joined_) {
      board_.open(Phase::kFailed, [this](int64_t) { return encode_failure(*reason_); });
      has_joined_ = true;
    } else if (!mark(Phase::kFailed)) {
      committed_ = true;
      board_.commit();
    }
  }
  if (committed_) {
    mark(Phase::kFailed);
    if (options_.rank == 0) {
      expect_to_hear(members());
    } else {
      store_.set(board_.key("heard", options_.rank), "");
    }
  } else if (options_.rank == 0) {
    tell_members();
  } else {
    // Rank 0 knows of those who have joined, and asks what became of them.
    tells_until_ = Clock::now() + patience(coming_ > 0 && !has_joined_);
    tell_leader();
  }
  has_told_ = true;
}

void StoreBootstrap::stay(const Check& check) noexcept {
  if (!reason_) {
    return;
  }
  try {
    if (!has_told_) {
      tell_first();
    }
    while (!committed_ && !orphaned_ && Clock::now() < tells_until_ &&
           !(options_.rank == 0 ? tell_members() : tell_leader())) {
      store_.pause(options_.pause);
      check();
    }
    const auto until = Clock::now() + kLinger;
    while (!unheard_.empty() && Clock::now() < until && !store_.check(unheard_)) {
      store_.pause(options_.pause);
      check();
    }
  } catch (const std::exception&) {
    // It was ended, or the store has.
  }
}

/// Tells those who have joined since the last call. True: nobody is left, or has to be told.
bool StoreBootstrap::tell_members() {
  std::vector<int> told_now;
  bool is_complete = true;
  for (int r = 1; r < options_.size; ++r) {
    if (told_.contains(r)) {
      continue;
    }
    const auto entry = joined(r);
    if (!entry) {
      is_complete = is_complete && (r >= coming_ || r == reason_->rank());
      continue;
    }
    store_.set(board_.key("told/" + entry->nonce), encode_failure(*reason_));
    told_.insert(r);
    told_now.push_back(r);
  }
  expect_to_hear(told_now);
  board_.look();
  return is_complete || board_.is_superseded();
}

/// True: rank 0 has failed, so it knows.
bool StoreBootstrap::tell_leader() {
  board_.look();
  if (board_.state().epoch > told_in_) {
    board_.enter();
    told_in_ = board_.epoch();
    const std::string entry =
        encode_entry(options_.rank, JoinRecord{nonce_, options_.size, *reason_, ""}.encode());
    store_.set(board_.key("join", options_.rank), entry);
    report(entry);
    store_.set(board_.key("heard", options_.rank), "");
  }
  return told_in_ > 0 && board_.state().phase == Phase::kFailed &&
         store_.check(board_.key("told/" + nonce_));
}

void StoreBootstrap::expect_to_hear(const std::vector<int>& ranks) {
  for (const int r : ranks) {
    if (r != reason_->rank()) {
      unheard_.push_back(board_.key("heard", r));
    }
  }
}

}  // namespace q7x2
