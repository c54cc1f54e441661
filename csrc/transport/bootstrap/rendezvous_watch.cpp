// Whom a rank watches while the ranks meet, and what follows from a loss (member_monitor.h).
#include "transport/bootstrap/rendezvous.h"
#include "transport/bootstrap/rendezvous_records.h"

namespace q7x2 {

// ----------------------------------------------------------------------------------------- news

/// Something has happened in this epoch that concerns all, since the last call.
bool Rendezvous::heard_news() {
  const int64_t before = news_;
  news_ = store_.add(key("news"), 0);
  return news_ != before;
}

void Rendezvous::spread_news() {
  store_.add(key("news"), 1);
}

// ------------------------------------------------------------------------------- who is watched

/// Ranks of its host and its children watch rank 0. A rank 0 that has failed before it had a peer
/// info tells everybody.
void Rendezvous::watch_leader() {
  if (options_.monitor == nullptr || watched_.contains(0) || !store_.check(key("open"))) {
    return;
  }
  const auto records = records_of(store_.get({key("open")}).front());
  const auto leader = records.find(0);
  watched_[0] = leader == records.end() ? "" : leader->second.nonce;
  if (leader == records.end()) {
    return;
  }
  const bool is_parent = (options_.rank - 1) / options_.branches == 0;
  if (const auto peer_info = peer_info_of(0, leader->second)) {
    options_.monitor->watch(0, *peer_info, peer_info_, /*also_far=*/is_parent);
  }
}

void Rendezvous::watch_children() {
  if (options_.monitor == nullptr) {
    return;
  }
  for (const int child : children_) {
    if (watched_.contains(child)) {
      continue;
    }
    if (const auto entry = joined(child); entry && !entry->failure) {
      watched_[child] = entry->nonce;
      if (const auto peer_info = peer_info_of(child, *entry)) {
        options_.monitor->watch(child, *peer_info, peer_info_, /*also_far=*/true);
      }
    }
  }
}

// -------------------------------------------------------------------------------- what follows

/// Throws if a loss ends the group: whatever rank 0 finds, and what others have seen themselves.
/// `asks`: whether the lost rank has said why it ends, which the store knows.
void Rendezvous::heed_losses(bool asks) {
  if (options_.monitor == nullptr || committed_) {
    return;
  }
  for (const MemberMonitor::Loss& loss : options_.monitor->losses()) {
    if (!loss.was_seen_alive && options_.rank != 0) {
      continue;
    }
    if (const auto entry = asks ? joined(loss.rank) : std::nullopt; entry && entry->failure) {
      coming_ = options_.size;
      throw Error(*entry->failure);
    }
    coming_ = options_.size;
    const Error lost = error(ErrorCode::kPeerFailed, loss.reason, loss.rank);
    if (loss.rank == 0) {
      orphaned_ = lost;
    }
    throw Error(lost);
  }
}

/// The same, and tells rank 0 of those that may have been lost long ago.
void Rendezvous::report_losses() {
  watch_leader();
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
    store_.set(key("bad"), encode_entry(loss.rank, record.encode()));
    spread_news();
  }
}

/// Throws if rank 0 has died in this epoch since this rank joined it.
void Rendezvous::check_for_orphans() {
  if (!was_orphaned_ && store_.check(key("orphaned"))) {
    over_ = true;
    throw Error(decode_failure(store_.get({key("orphaned")}).front()));
  }
}

}  // namespace q7x2
