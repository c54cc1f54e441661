// The agreement at the end of a bootstrap: all survivors have the group, or none has it.
//
//   member 1   made --ready-->  leader 0  (all are ready)  --commit--> 1, 2
//   member 2   made --ready-->
//
// - A member votes when it has made its part. Before that it may fail by itself, which it tells.
//   After that it does what the leader decides. The leader is the first member that is alive.
// - The leader commits when all have voted. If one dies before, nobody has the group.
// - If the leader dies, the next one asks all that are alive. If one of them has committed, all do.
//   If not, nobody does: those that might have are dead. A member that has answered the new leader
//   heeds the old one no more.
// - A member that has ended its call still answers, by the table.
//
// That is two-phase commit whose coordinator is replaced. It needs no third phase, because a
// process that commits and lives on can be asked (Bernstein, Hadzilacos and Goodman, "Concurrency
// Control and Recovery in Database Systems", 1987, section 7.4), and because nobody minds what the
// dead have decided. It is as good as the news of deaths: if two processes that live take each
// other for dead, because no packet gets through, they may end differently.
#include <algorithm>
#include <utility>

#include "base/process.h"
#include "transport/bootstrap/peer_address.h"
#include "transport/bootstrap/peer_bootstrap.h"
#include "transport/run/runtime.h"

namespace q7x2 {
namespace {

constexpr std::chrono::milliseconds kNap{1};

}  // namespace

void PeerBootstrap::run(const std::function<void()>& make,
                        const std::function<void(const Error&)>& abort) {
  const auto tell = [&](const Error& error) {
    fail(error);
    abort(error);
  };
  try {
    make();
    agree();
  } catch (const Error& error) {
    tell(error);
    throw;
  } catch (const std::exception& error) {
    tell(aborted_by(error, rank_));
    throw;
  }
  finish([] {});
}

void PeerBootstrap::fail(const Error& failure) noexcept {
  if (std::exchange(finished_, true) || is_in_doubt_) {
    return;
  }
  try {
    answer_ = message(BootstrapKind::kFailure);
    answer_.code = failure.code();
    answer_.subject = failure.rank();
    answer_.text = failure.what();
    const std::string told = answer_.encode();
    // The leader decides for all; what others say is passed on.
    const bool decides = has_voted_ && leader_ == rank_;
    for (int member = 0; decides && member < size(); ++member) {
      if (member != rank_ && !gone_.contains(member)) send(member, told);
    }
    for (const int member : decides ? std::vector<int>{} : neighbours()) {
      send(member, told);
    }
    Locked locked(runtime_.lock());
    for (const PeerInfo& stranger : strangers_) {
      runtime_.bootstraps().send(locked, stranger, told);
    }
  } catch (const std::exception&) {
    // The others have deadlines.
  }
}

void PeerBootstrap::agree() {
  has_voted_ = true;
  auto next_word = Clock::now() + (rank_ == leader_ ? kAskPeriod : std::chrono::milliseconds(0));
  for (;;) {
    runtime_.drive();
    read();
    if (is_committed_) return;
    if (const int leader = first_alive(); leader > leader_) {
      leader_ = leader;
      next_word = Clock::now();
    }
    if (leader_ == rank_ && lead()) return;
    if (Clock::now() >= next_word) {
      next_word = Clock::now() + kAskPeriod;
      if (leader_ == rank_) {
        ask_for_votes();
      } else {
        send(leader_, message(BootstrapKind::kReady).encode());
      }
    }
    try {
      look_around([] {});
      if (Clock::now() >= deadline_) {
        int missing = leader_;
        while (leader_ == rank_ &&
               (missing == rank_ || ready_.contains(missing) || gone_.contains(missing))) {
          missing = (missing + 1) % size();
        }
        throw error(ErrorCode::kTimeout,
                    "timed out after " + std::to_string(options_.timeout.count()) +
                        " ms, waiting for " + describe(missing),
                    missing);
      }
    } catch (...) {
      is_in_doubt_ = leader_ != rank_;
      throw;
    }
    inbox_.wait(kNap);
  }
}

/// True: all have the group. Throws if nobody does.
bool PeerBootstrap::lead() {
  bool is_complete = true;
  for (int member = 0; member < size(); ++member) {
    if (member != rank_ && !is_gone(member)) is_complete &= ready_.contains(member);
  }
  // The first leader decides alone. Its successor must know that nobody has committed.
  if (!gone_.empty() && (is_complete || rank_ == 0)) throw gone_.begin()->second;
  if (!is_complete) return false;
  const std::string commit = message(BootstrapKind::kCommit).encode();
  for (int member = 0; member < size(); ++member) {
    if (member != rank_) send(member, commit);
  }
  return true;
}

void PeerBootstrap::ask_for_votes() {
  const std::string question = message(BootstrapKind::kAskReady).encode();
  for (int member = 0; member < size(); ++member) {
    if (member != rank_ && !ready_.contains(member) && !gone_.contains(member)) {
      send(member, question);
    }
  }
}

void PeerBootstrap::hear(const BootstrapMessage& message) {
  const std::optional<int> member = member_of(message.process);
  if (!member) return;
  if (message.kind == BootstrapKind::kReady) {
    ready_.insert(*member);
  } else if (message.kind == BootstrapKind::kCommit) {
    if (*member >= leader_) {
      is_committed_ = true;
      leader_ = *member;
    }
  } else {
    leader_ = std::max(leader_, *member);
    if (has_voted_ && leader_ == *member) {
      send(*member, this->message(BootstrapKind::kReady).encode());
    }
  }
}

int PeerBootstrap::first_alive() {
  int member = 0;
  while (member != rank_ && is_gone(member)) ++member;
  return member;
}

/// Whether it is dead. If only its connection broke, it is opened again.
bool PeerBootstrap::is_gone(int member) {
  if (gone_.contains(member)) return true;
  {
    Locked locked(runtime_.lock());
    const Peer* const peer =
        runtime_.peers().find(locked, options_.members[static_cast<size_t>(member)].process);
    if (peer == nullptr || !peer->life.is_dead()) return false;
    if (peer->life.has_ended() || peer->life.is_shm_blocked() ||
        reopened_[member] >= kMostReopened) {
      gone_.emplace(member, error(ErrorCode::kPeerFailed,
                                  describe(member) + " failed: " + peer->life.reason(), member));
      return true;
    }
    ++reopened_[member];
  }
  send(member,
       message(leader_ == rank_ ? BootstrapKind::kAskReady : BootstrapKind::kReady).encode());
  return false;
}

std::optional<int> PeerBootstrap::member_of(uint64_t process) const {
  const auto found = std::ranges::find(options_.members, process, &PeerInfo::process);
  if (found == options_.members.end()) return std::nullopt;
  return static_cast<int>(found - options_.members.begin());
}

// --------------------------------------------------------------------------------- who is who

/// The members that this one exchanges messages with.
std::vector<int> PeerBootstrap::neighbours() const {
  std::set<int> members;
  for (int round = 0; round < rounds_.rounds(); ++round) {
    members.insert(rounds_.to(round));
    members.insert(rounds_.from(round));
  }
  members.erase(rank_);
  return {members.begin(), members.end()};
}

std::string PeerBootstrap::describe(int member) const {
  return options_.describe
             ? options_.describe(member)
             : "rank " + std::to_string(member) + " (" +
                   describe_process(options_.members[static_cast<size_t>(member)]) + ")";
}

/// As the seals of what is published name it.
std::string PeerBootstrap::attempt() const {
  return stamp_.key + '\n' + std::to_string(stamp_.attempt);
}

Error PeerBootstrap::error(ErrorCode code, const std::string& text, int member) const {
  return Error(code, options_.title + ": " + text, member);
}

}  // namespace q7x2
