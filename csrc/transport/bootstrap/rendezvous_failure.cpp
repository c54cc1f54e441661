// How a rank that cannot make its group tells the others, and how they hear of it.
#include <algorithm>

#include "transport/bootstrap/rendezvous.h"
#include "transport/bootstrap/rendezvous_records.h"

namespace q7x2 {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Rank 0 often owns the store, so it stays until the others have read why it fails.
constexpr milliseconds kLinger{500};
// How long a rank that has waited in vain waits for rank 0 to say who is missing.
constexpr milliseconds kMoment{30};

}  // namespace

// -------------------------------------------------------------------------------------- to hear

void Rendezvous::attend() {
  look_up();
  heed_losses(/*asks=*/false);
}

/// Away from the store.
void Rendezvous::look_up() {
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

bool Rendezvous::look_for_failure(bool is_thorough) {
  if (is_thorough && store_.check(key("failed"))) {
    const std::string record = store_.get({key("failed")}).front();
    if (options_.rank == 0) {
      fail(decode_failure(record));
    }
    raise(record);
  }
  return false;
}

void Rendezvous::raise(const std::string& record) {
  over_ = true;
  store_.set(key("heard", options_.rank), "");
  throw Error(decode_failure(record));
}

Error Rendezvous::better_known(const Error& failure) noexcept {
  if (!committed_ || over_ || options_.rank == 0 || failure.code() != ErrorCode::kTimeout) {
    return failure;
  }
  try {
    const auto until = Clock::now() + kMoment;
    while (Clock::now() < until) {
      if (store_.wait({key("failed")}, options_.pause)) {
        look_for_failure(/*is_thorough=*/true);
      }
    }
  } catch (const Error& told) {
    return over_ ? told : failure;
  } catch (const std::exception&) {
    // An interrupt. The failure comes first.
  }
  return failure;
}

// -------------------------------------------------------------------------------------- to tell

void Rendezvous::fail(const Error& reason) noexcept {
  const bool alone = options_.size < 2 || options_.rank < 0 || options_.rank >= options_.size;
  if (over_ || alone) {
    return;
  }
  over_ = true;
  try {
    const bool complete = std::string_view(reason.what()).find(kCannot) != std::string_view::npos;
    reason_ = complete ? reason : error(reason.code(), reason.what(), options_.rank);
    tell_first();
  } catch (const std::exception&) {
    // The store does not answer, or too slowly. `stay` tries again.
  }
}

void Rendezvous::tell_first() {
  const std::string failure = encode_failure(*reason_);
  if (orphaned_) {
    store_.set(key("orphaned"), failure);
    spread_news();
  } else if (committed_) {
    if (!store_.check(key("failed"))) {
      store_.set(key("failed"), failure);
      spread_news();
    }
    if (options_.rank == 0) {
      expect_to_hear(members());
    } else {
      store_.set(key("heard", options_.rank), "");
    }
  } else if (options_.rank == 0) {
    // A rank that comes later would wait for this one, so this one waits for it.
    tells_until_ = Clock::now() + (coming_ > 0 ? options_.patience : milliseconds(0));
    if (!has_joined_) {
      epoch_ = store_.add(kEpochs, 1);
      store_.set(key("open"), "");
      store_.add(key_in(epoch_ - 1, "news"), 1);
      has_joined_ = true;
    }
    tell_members();
  } else {
    // Rank 0 knows of those who have joined, and asks what became of them.
    const bool waits = coming_ > 0 && !has_joined_;
    tells_until_ = Clock::now() + (waits ? options_.patience : milliseconds(0));
    tell_leader();
  }
  has_told_ = true;
}

void Rendezvous::stay(const Check& check) noexcept {
  if (!reason_) {
    return;
  }
  try {
    if (!has_told_) {
      tell_first();
    }
    const std::vector<std::string> never = {key("nothing")};
    while (!committed_ && !orphaned_ && Clock::now() < tells_until_ &&
           !(options_.rank == 0 ? tell_members() : tell_leader())) {
      store_.wait(never, options_.pause);
      check();
    }
    const auto until = Clock::now() + kLinger;
    while (!unheard_.empty() && Clock::now() < until && !store_.wait(unheard_, options_.pause)) {
      check();
    }
  } catch (const std::exception&) {
    // It was ended, or the store has.
  }
}

/// Tells those who have joined since the last call. True: nobody is left, or has to be told.
bool Rendezvous::tell_members() {
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
    store_.set(key("told/" + entry->nonce), encode_failure(*reason_));
    told_.insert(r);
    told_now.push_back(r);
  }
  if (!told_now.empty()) {
    spread_news();
    expect_to_hear(told_now);
  }
  return is_complete || superseded();
}

/// True: rank 0 has told this rank, so it knows.
bool Rendezvous::tell_leader() {
  const int64_t newest = store_.add(kEpochs, 0);
  if (newest > told_in_) {
    epoch_ = newest;
    const std::string entry =
        encode_entry(options_.rank, JoinRecord{nonce_, options_.size, *reason_, ""}.encode());
    store_.set(key("join", options_.rank), entry);
    store_.set(key("bad"), entry);
    store_.set(key("heard", options_.rank), "");
    spread_news();
    told_in_ = newest;
  }
  return store_.check(key("told/" + nonce_));
}

void Rendezvous::expect_to_hear(const std::vector<int>& ranks) {
  for (const int r : ranks) {
    if (r != reason_->rank()) {
      unheard_.push_back(key("heard", r));
    }
  }
}

}  // namespace q7x2
