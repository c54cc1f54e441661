#include "late/vote.h"

#include <algorithm>

namespace q7x2 {
namespace {

constexpr Vote::Proposal kNothing{-1, {}};

}  // namespace

Vote::Ballots Vote::lead(int64_t held) {
  if (rank_ != leader_ || mine_ >= 0 || promised_ > 0) return {};
  mine_ = 0;
  return propose({.mask = held, .leader = rank_}, rank_);
}

Vote::Ballots Vote::take_over() {
  const int64_t rounds = std::max(promised_, mine_) / world_size_ + 1;
  mine_ = promised_ = rounds * world_size_ + rank_ + 1;
  proposed_.reset();
  promises_ = {{rank_, accepted_.value_or(kNothing)}};
  return {{.kind = Ballot::Kind::kPrepare, .ballot = mine_}};
}

Vote::Ballots Vote::hear(int sender, const Ballot& message, int64_t held) {
  const int64_t ballot = message.ballot;
  switch (message.kind) {
    case Ballot::Kind::kPropose:
      if (ballot < promised_) return {};
      promised_ = ballot;
      proposal_ = {ballot, message.value};
      source_ = sender;
      return accept(held);
    case Ballot::Kind::kAccept:
      count(sender, ballot, message.value);
      return {};
    case Ballot::Kind::kPrepare: {
      if (ballot <= promised_) return {};
      promised_ = ballot;
      proposal_.reset();
      const auto [accepted, value] = accepted_.value_or(kNothing);
      return {{.kind = Ballot::Kind::kPromise,
               .ballot = ballot,
               .value = value,
               .to = sender,
               .accepted = accepted}};
    }
    case Ballot::Kind::kPromise:
      return promise(sender, message, held);
  }
  return {};
}

Vote::Ballots Vote::promise(int sender, const Ballot& message, int64_t held) {
  if (message.ballot != mine_ || proposed_) return {};
  promises_[sender] = {message.accepted, message.value};
  if (promises_.size() < majority()) return {};
  // The first of the ranks that have accepted the highest ballot.
  const auto& [rank, last] = *std::ranges::max_element(
      promises_, {}, [](const auto& each) { return std::pair(each.second.first, -each.first); });
  if (last.first < 0) return propose({.mask = held, .leader = rank_}, rank_);
  return propose(last.second, rank);
}

Vote::Ballots Vote::accept(int64_t held) {
  if (!proposal_ || proposal_ == accepted_) return {};
  const auto [ballot, value] = *proposal_;
  if (ballot < promised_ || (value.mask & ~held) != 0) return {};
  accepted_ = proposal_;
  count(rank_, ballot, value);
  return {{.kind = Ballot::Kind::kAccept, .ballot = ballot, .value = value}};
}

Vote::Ballots Vote::repeat(int to) const {
  Ballots ballots;
  if (proposed_ && mine_ == promised_) {
    ballots.push_back(
        {.kind = Ballot::Kind::kPropose, .ballot = mine_, .value = *proposed_, .to = to});
  }
  if (accepted_) {
    ballots.push_back({.kind = Ballot::Kind::kAccept,
                       .ballot = accepted_->first,
                       .value = accepted_->second,
                       .to = to});
  }
  return ballots;
}

Vote::Ballots Vote::propose(VoteValue value, int source) {
  // All ranks that decide this value agree on the leader of the next step, for any ballot.
  proposed_ = value;
  proposal_ = {mine_, value};
  source_ = source;
  return {{.kind = Ballot::Kind::kPropose, .ballot = mine_, .value = value}};
}

void Vote::count(int rank, int64_t ballot, VoteValue value) {
  std::set<int>& ranks = accepts_[ballot];
  ranks.insert(rank);
  if (ranks.size() >= majority()) decided_ = value;
}

}  // namespace q7x2
