#include "transport/bootstrap/peer_member_monitor.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "transport/bootstrap/peer_address.h"
#include "transport/group/group.h"
#include "transport/run/runtime.h"

namespace q7x2 {
namespace {

std::string describe(int rank, const PeerInfo& peer_info) {
  return "rank " + std::to_string(rank) + " (" + describe_process(peer_info) + ")";
}

std::optional<PeerInfo> readable(const std::string& bytes) {
  try {
    return PeerInfo::decode(bytes);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

PeerMemberMonitor::PeerMemberMonitor(const std::vector<uint64_t>& job_ranks)
    : runtime_(Runtime::existing()) {
  if (runtime_ && !job_ranks.empty()) {
    add_job(job_ranks);
    runtime_->parking().wake_driver();
  }
}

void PeerMemberMonitor::add_job(const std::vector<uint64_t>& job_ranks) {
  Locked locked(runtime_->lock());
  const std::unordered_map<uint64_t, Peer*> known = runtime_->groups().job_members(locked);
  for (size_t r = 0; r < job_ranks.size(); ++r) {
    const auto found = known.find(job_ranks[r]);
    if (found == known.end()) {
      continue;
    }
    const PeerInfo& peer_info = found->second->info;
    const Peer* const peer = runtime_->peers().find(locked, peer_info.process);
    job_.push_back({static_cast<int>(r), peer_info.process,
                    describe(static_cast<int>(r), peer_info),
                    peer->life.is_lost_by(Evidence::kSilent)});
  }
  for (Peer* const failed : runtime_->groups().failed_members(locked)) {
    runtime_->peers().watch(locked, *failed);
  }
}

void PeerMemberMonitor::watch(int rank, const std::string& bytes, const std::string& own_bytes,
                              bool also_far) {
  if (!runtime_) {
    runtime_ = Runtime::instance();
  }
  joined_.erase(rank);
  const std::optional<PeerInfo> theirs = readable(bytes);
  const std::optional<PeerInfo> mine = readable(own_bytes);
  if (!theirs || !mine) {
    return;
  }
  const PeerInfo& peer_info = *theirs;
  const PeerInfo& own = *mine;
  const bool same_host = peer_info.host_key == own.host_key;
  if (peer_info.process == own.process || (!same_host && !also_far)) {
    return;
  }
  {
    Locked locked(runtime_->lock());
    const uint32_t incarnation = std::max(own.connection(peer_info.process).incarnation,
                                          peer_info.connection(own.process).incarnation);
    Peer& peer = runtime_->peers().meet(locked, peer_info, same_host, incarnation);
    runtime_->peers().watch(locked, peer);
  }
  runtime_->parking().wake_driver();
  joined_[rank] = {rank, peer_info.process, describe(rank, peer_info)};
  is_new_ = true;
}

std::vector<MemberMonitor::Loss> PeerMemberMonitor::losses() {
  if (!runtime_ || (runtime_->peers().num_losses() == seen_ && !is_new_)) {
    return losses_;
  }
  seen_ = runtime_->peers().num_losses();
  is_new_ = false;
  losses_.clear();
  for (const Watched& watched : job_) {
    look(watched, true);
  }
  for (const auto& [rank, watched] : joined_) {
    look(watched, false);
  }
  return losses_;
}

// A member of the job was alive when its groups were made.
void PeerMemberMonitor::look(const Watched& watched, bool is_of_job) {
  Locked locked(runtime_->lock());
  const Peer* const peer = runtime_->peers().find(locked, watched.process);
  if (peer == nullptr) {
    return;
  }
  const bool was_seen = is_of_job || peer->life.was_seen();
  if (peer->life.has_ended()) {
    losses_.push_back({watched.rank, watched.who + " failed: its process has ended", was_seen});
  } else if (peer->life.is_lost_by(Evidence::kSilent) && !watched.was_silent) {
    losses_.push_back({watched.rank, watched.who + " failed: " + peer->life.reason(), was_seen});
  }
}

// ---------------------------------------------------------------------------------- who is late

Group* PeerMemberMonitor::group_with(Locked& locked, uint64_t process) const {
  return runtime_->groups().find_common(locked, process);
}

void PeerMemberMonitor::ask(const std::vector<int>& ranks) {
  if (!runtime_) {
    return;
  }
  {
    Locked locked(runtime_->lock());
    for (const Watched& watched : job_) {
      if (std::find(ranks.begin(), ranks.end(), watched.rank) == ranks.end()) {
        continue;
      }
      hear(locked, watched);
      if (Group* const group = group_with(locked, watched.process)) {
        asked_.try_emplace(watched.rank, Asked{Clock::now(), ""});
        group->agreement().ask_whom_it_awaits(locked, group->membership().rank_of(watched.process));
      }
    }
  }
  runtime_->parking().wake_driver();  // which hears the answers
}

std::string PeerMemberMonitor::late_behind(int rank) {
  const auto found = asked_.find(rank);
  if (found == asked_.end()) {
    return "";
  }
  Locked locked(runtime_->lock());
  for (const Watched& watched : job_) {
    if (watched.rank == rank) hear(locked, watched);
  }
  return found->second.late_behind;
}

// A rank that stops waiting just before this one's deadline has named the right one before.
void PeerMemberMonitor::hear(Locked& locked, const Watched& watched) {
  const auto asked = asked_.find(watched.rank);
  Group* const group = group_with(locked, watched.process);
  if (asked == asked_.end() || group == nullptr) {
    return;
  }
  std::string late = group->agreement().late_behind(
      locked, group->membership().rank_of(watched.process), asked->second.since);
  if (!late.empty()) asked->second.late_behind = std::move(late);
}

}  // namespace q7x2
