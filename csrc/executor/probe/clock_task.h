// How far the clock of another rank is ahead of this one's, by round trips of a few bytes.
//
//   asks      t0 >                 > t1
//   answers        its time `a`
//
// The answer was given somewhere between t0 and t1, so the clock there is ahead by a - (t0 + t1)/2,
// give or take (t1 - t0)/2. The shortest of some round trips says it best (Cristian, "Probabilistic
// clock synchronization", 1989).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "executor/probe/probe_tasks.h"

namespace q7x2 {

struct ClockOffset {
  int64_t nanoseconds = 0;  ///< how far the other clock is ahead
  int64_t uncertainty = 0;  ///< the largest error
};

/// One end of the conversation. Both ends submit it, with each other as the peer.
class ClockTask final : public Conversation {
 public:
  using Now = TimePoint (*)();

  /// `asks`: this is the end that learns the offset. `now`: reads this end's clock.
  ClockTask(std::shared_ptr<Group> group, int peer, bool asks, std::chrono::milliseconds timeout,
            Now now = Clock::now)
      : Conversation(std::move(group), "clock", peer, Wire::kShared, /*tiny=*/true, timeout),
        asks_(asks),
        now_(now) {}

  /// Only at the end that asks, and only after `done`.
  ClockOffset offset() const;

 private:
  void begin(Locked& locked) override;
  void received(Locked& locked, uint32_t channel, size_t bytes) override;
  void ask(Locked& locked);

  const bool asks_;
  const Now now_;
  int round_trips_ = 0;
  int64_t asked_at_ = 0;
  int64_t shortest_ = INT64_MAX;
  int64_t ahead_ = 0;
  int64_t sent_ = 0;  // an answer: the time; a question: whether another one follows
  int64_t heard_ = 0;
};

/// Rank 0 answers `ranks`, each of which calls this too and learns how far rank 0's clock is ahead.
/// Other ranks do not call it. Throws the Error of a failed group.
ClockOffset compare_clocks(const std::shared_ptr<Group>& group, const std::vector<int>& ranks,
                           std::chrono::milliseconds timeout, ClockTask::Now now = Clock::now);

}  // namespace q7x2
