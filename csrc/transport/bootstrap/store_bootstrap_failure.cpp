// Whom a rank watches while the ranks meet (member_monitor.h), which ranks cannot make the group,
// and how the others hear of it.
#include <algorithm>
#include <string_view>

#include "transport/bootstrap/published.h"
#include "transport/bootstrap/store_bootstrap.h"

namespace q7x2 {
namespace {

using std::chrono::milliseconds;

// Rank 0 often owns the store, so it stays until the others have read why it fails.
constexpr milliseconds kLinger{500};
// How long a rank that has waited in vain waits for rank 0 to say who is missing.
constexpr milliseconds kMoment{30};
// At a pause a rank asks for children that have not joined, one by one, for about so long.
constexpr milliseconds kAsksForChildren{2};

}  // namespace

// ------------------------------------------------------------------------------- who is watched

/// What a process has published as `rank` last.
std::optional<JoinRecord> StoreBootstrap::joined(int rank) {
  const std::optional<std::string> entry = store_.read(board_.key("join", rank));
  if (!entry) {
    return std::nullopt;
  }
  const auto records = records_of(*entry);
  const auto found = records.find(rank);
  return found == records.end() ? std::nullopt : std::optional(found->second);
}

/// Nothing: its seal is not that of the job.
std::optional<std::string> StoreBootstrap::peer_info_of(int rank, const JoinRecord& record) const {
  try {
    return read_published(options_.secret, "peer_info",
                          {rank, options_.size, options_.group, std::to_string(board_.epoch())},
                          record.peer_info);
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// Ranks of its host and its children watch rank 0.
void StoreBootstrap::watch_leader() {
  if (options_.monitor == nullptr || board_.state().phase != Phase::kOpen) {
    return;
  }
  const auto records = records_of(board_.body());
  const auto leader = records.find(0);
  if (leader == records.end()) {
    return;
  }
  watched_[0] = leader->second.nonce;
  const bool is_parent = (options_.rank - 1) / options_.branches == 0;
  if (const auto peer_info = peer_info_of(0, leader->second)) {
    options_.monitor->watch(0, *peer_info, peer_info_, /*also_far=*/is_parent);
  }
}

void StoreBootstrap::watch_children() {
  const auto until = Clock::now() + kAsksForChildren;
  for (const int child : children_) {
    if (watched_.contains(child)) {
      continue;
    }
    if (const auto entry = joined(child)) {
      take_child(child, *entry);
    }
    if (Clock::now() >= until) {
      return;
    }
  }
}

void StoreBootstrap::take_child(int child, const JoinRecord& record) {
  if (options_.rank == 0) {
    judge(child, record);
  } else if (record.size != options_.size && reported_.insert(record.nonce).second) {
    // Ranks that were told different world sizes have different trees, and would wait for each
    // other.
    const JoinRecord own{nonce_, options_.size, {}, ""};
    report(encode_entry(options_.rank, own.encode()) + encode_entry(child, record.encode()));
  }
  if (record.failure) {
    return;
  }
  watched_[child] = record.nonce;
  const auto peer_info = peer_info_of(child, record);
  if (options_.monitor != nullptr && peer_info) {
    options_.monitor->watch(child, *peer_info, peer_info_, /*also_far=*/true);
  }
}

bool StoreBootstrap::child_was_replaced(const Roster& roster) {
  return std::ranges::any_of(children_, [&](int child) {
    const auto before = roster.find(child);
    const auto now = before == roster.end() ? std::nullopt : joined(child);
    return now && now->nonce != before->second.nonce;
  });
}

// -------------------------------------------------------------------------------- what follows

/// Throws where the entry of `rank` rules the group out.
void StoreBootstrap::judge(int rank, const JoinRecord& entry) {
  if (entry.failure) {
    coming_ = options_.size;
    throw Error(*entry.failure);
  }
  if (entry.size != options_.size) {
    coming_ = std::min(options_.size, entry.size);
    throw error(ErrorCode::kMismatch,
                "rank " + std::to_string(rank) + " was told a world size of " +
                    std::to_string(entry.size) + ", rank 0 of " + std::to_string(options_.size),
                rank);
  }
}

/// Rank 0: throws where what others report rules the group out.
void StoreBootstrap::judge_reports() {
  if (const auto reported = store_.read(board_.key("report"))) {
    for (const auto& [rank, entry] : records_of(*reported)) {
      judge(rank, entry);
    }
  }
}

void StoreBootstrap::report(const std::string& entries) {
  store_.set(board_.key("report"), entries);
}

/// Throws if a loss ends the group: whatever rank 0 finds, and what others have seen themselves.
/// `asks`: whether the lost rank has said why it ends, which the store knows.
void StoreBootstrap::heed_losses(bool asks) {
  if (options_.monitor == nullptr || committed_) {
    return;
  }
  for (const MemberMonitor::Loss& loss : options_.monitor->losses()) {
    if (!loss.was_seen_alive && options_.rank != 0) {
      continue;
    }
    coming_ = options_.size;
    if (const auto entry = asks ? joined(loss.rank) : std::nullopt; entry && entry->failure) {
      throw Error(*entry->failure);
    }
    const Error lost = error(ErrorCode::kPeerFailed, loss.reason, loss.rank);
    if (loss.rank == 0) {
      orphaned_ = lost;
    }
    throw Error(lost);
  }
}

/// The same, and tells rank 0 of those that may have been lost long ago.
void StoreBootstrap::report_losses() {
  heed_losses(/*asks=*/true);
  if (options_.monitor == nullptr) {
    return;
  }
  for (const MemberMonitor::Loss& loss : options_.monitor->losses()) {
    const auto watched = watched_.find(loss.rank);
    if (loss.rank == 0 || watched == watched_.end() || !reported_.insert(watched->second).second) {
      continue;
    }
    const JoinRecord record{watched->second, options_.size,
                            error(ErrorCode::kPeerFailed, loss.reason, loss.rank), ""};
    report(encode_entry(loss.rank, record.encode()));
  }
}

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
    const bool complete = std::string_view(reason.what()).find(kCannot) != std::string_view::npos;
    reason_ = complete ? reason : error(reason.code(), reason.what(), options_.rank);
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
