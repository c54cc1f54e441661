// Votes of a quorum in random orders: never two values, and always one in the end.
#include "late/vote.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <deque>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

/// Votes of all ranks, and what is on its way between them; messages may be lost.
class Ranks {
 public:
  Ranks(int size, uint32_t seed) : size_(size), random_(seed) {
    const int leader = below(size);
    for (int rank = 0; rank < size; ++rank) {
      votes.emplace_back(rank, size, leader);
      held.push_back(int64_t{1} << rank);
    }
  }

  int below(int end) { return std::uniform_int_distribution<int>(0, end - 1)(random_); }
  double chance() { return std::uniform_real_distribution<double>(0, 1)(random_); }

  void say(int rank, const Vote::Ballots& ballots) {
    for (const Ballot& each : ballots) {
      for (int to = 0; to < size_; ++to) {
        if (to != rank && (each.to == Ballot::kAll || each.to == to)) {
          mail.push_back({rank, to, each});
        }
      }
    }
  }

  void deliver(int index) {
    const Message message = mail[static_cast<size_t>(index)];
    mail.erase(mail.begin() + index);
    say(message.to, vote(message.to).hear(message.sender, message.ballot, held_by(message.to)));
  }

  void random_event() {
    const int rank = below(size_);
    const bool is_enough =
        static_cast<size_t>(std::popcount(static_cast<uint64_t>(held_by(rank)))) >=
        vote(rank).majority();
    const double what = chance();
    if (what < 0.6 && !mail.empty()) {
      const int index = below(static_cast<int>(mail.size()));
      if (chance() < 0.2) {
        mail.erase(mail.begin() + index);
        return;
      }
      if (chance() < 0.1) mail.push_back(Message(mail[static_cast<size_t>(index)]));
      deliver(index);
    } else if (what < 0.8) {
      held[static_cast<size_t>(rank)] |= int64_t{1} << below(size_);
      say(rank, vote(rank).accept(held_by(rank)));
    } else if (is_enough && what < 0.9) {
      say(rank, vote(rank).lead(held_by(rank)));
    } else if (is_enough && what < 0.95) {
      say(rank, vote(rank).take_over());
    } else if (const int to = below(size_); to != rank) {
      say(rank, vote(rank).repeat(to));
    }
  }

  Vote& vote(int rank) { return votes[static_cast<size_t>(rank)]; }
  int64_t held_by(int rank) const { return held[static_cast<size_t>(rank)]; }

  std::set<VoteValue> decided() const {
    std::set<VoteValue> values;
    for (const Vote& each : votes) {
      if (each.decided()) values.insert(*each.decided());
    }
    return values;
  }

  struct Message {
    int sender;
    int to;
    Ballot ballot;
  };
  std::vector<Vote> votes;
  std::vector<int64_t> held;
  std::deque<Message> mail;

 private:
  const int size_;
  std::mt19937 random_;
};

class QuorumVotes : public testing::TestWithParam<int> {};

TEST_P(QuorumVotes, NoTwoRanksDecideDifferently) {
  const int size = GetParam();
  for (uint32_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    Ranks ranks(size, seed);
    for (int i = 0; i < 300; ++i) {
      ranks.random_event();
      ASSERT_LE(ranks.decided().size(), 1U);
    }
    // A majority that hears each other comes to an end, whatever happened before.
    const int majority = size / 2 + 1;
    const int first = ranks.below(size - majority + 1);
    const auto is_awake = [&](int rank) { return rank >= first && rank < first + majority; };
    for (int rank = first; rank < first + majority; ++rank) {
      ranks.held[static_cast<size_t>(rank)] = (int64_t{1} << size) - 1;
    }
    const auto all_decided = [&] {
      return std::all_of(ranks.votes.begin() + first, ranks.votes.begin() + first + majority,
                         [](const Vote& each) { return each.decided().has_value(); });
    };
    for (int turn = 0; turn < 50 && !all_decided(); ++turn) {
      const int rank = first + turn % majority;
      ranks.say(rank, ranks.vote(rank).take_over());
      while (!ranks.mail.empty()) {
        const auto& [sender, to, ballot] = ranks.mail.front();
        if (is_awake(sender) && is_awake(to)) {
          ranks.deliver(0);
        } else {
          ranks.mail.pop_front();
        }
        ranks.say(rank, ranks.vote(rank).accept(ranks.held_by(rank)));
      }
    }
    ASSERT_TRUE(all_decided());
    ASSERT_EQ(ranks.decided().size(), 1U);
    const int64_t mask = ranks.decided().begin()->mask;
    EXPECT_GE(std::ranges::count_if(ranks.held, [&](int64_t held) { return (mask & ~held) == 0; }),
              majority);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, QuorumVotes, testing::Values(3, 4, 5, 6));

TEST(QuorumVote, AValueIsAcceptedOnlyWithAllItsContributions) {
  constexpr VoteValue kValue{.mask = 0b011, .leader = 0};
  Vote vote(/*rank=*/1, /*world_size=*/3, /*leader=*/0);
  const Ballot proposal{.kind = Ballot::Kind::kPropose, .ballot = 0, .value = kValue};
  const Ballot accepted{.kind = Ballot::Kind::kAccept, .ballot = 0, .value = kValue};
  EXPECT_TRUE(vote.hear(0, proposal, 0b010).empty());
  EXPECT_TRUE(vote.accept(0b010).empty());
  EXPECT_EQ(vote.accept(0b011), Vote::Ballots{accepted});
  EXPECT_TRUE(vote.accept(0b011).empty());
  vote.hear(0, accepted, 0b011);
  EXPECT_EQ(vote.decided(), kValue);
}

}  // namespace
}  // namespace q7x2
