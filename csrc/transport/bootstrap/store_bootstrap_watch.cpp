// What a rank reads of the others: whom it watches by that, what follows from a loss
// (member_monitor.h), and the seals.
#include <algorithm>
#include <numeric>

#include "transport/bootstrap/published.h"
#include "transport/bootstrap/store_bootstrap.h"

namespace q7x2 {
namespace {

// At a pause a rank asks for children that have not joined, one by one, for about so long.
constexpr std::chrono::milliseconds kAsksForChildren{2};
constexpr const char* kPeerInfo = "peer_info";

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
    return read_published(options_.secret, kPeerInfo,
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

// --------------------------------------------------------------------------------- who is missing

/// Those of `ranks` whose key for `what` does not exist, or rank 0.
std::vector<int> StoreBootstrap::missing_of(const std::string& what,
                                            const std::vector<int>& ranks) {
  std::vector<int> missing;
  for (const int r : ranks) {
    if (r != options_.rank && !store_.check(board_.key(what, r))) {
      missing.push_back(r);
    }
  }
  return missing.empty() ? std::vector<int>{0} : missing;
}

/// All ranks but the leader.
std::vector<int> StoreBootstrap::members() const {
  std::vector<int> ranks(static_cast<size_t>(options_.size) - 1);
  std::iota(ranks.begin(), ranks.end(), 1);
  return ranks;
}

// ------------------------------------------------------------------------ what the records say

std::string StoreBootstrap::own_entry(int64_t epoch) const {
  return encode_entry(
      options_.rank,
      JoinRecord{nonce_, options_.size, {}, sealed(kPeerInfo, peer_info_, epoch)}.encode());
}

std::string StoreBootstrap::sealed(const std::string& what, const std::string& text,
                                   int64_t epoch) const {
  return publish(options_.secret, what,
                 {options_.rank, options_.size, options_.group, std::to_string(epoch)}, text);
}

std::vector<std::string> StoreBootstrap::opened(const std::string& what,
                                                const std::vector<std::string>& sealed) const {
  return read_all_published(
      options_.secret, what,
      {options_.rank, options_.size, options_.group, std::to_string(board_.epoch())}, sealed);
}

std::vector<std::string> StoreBootstrap::peer_infos_of(const Roster& roster) const {
  return opened(kPeerInfo, sealed_peer_infos_of(roster, options_.size));
}

std::vector<std::string> StoreBootstrap::sound_peer_infos_of(const Roster& roster) const {
  try {
    return peer_infos_of(roster);
  } catch (const Error&) {
    return {};
  }
}

}  // namespace q7x2
