// Refinement: chooses between several choices for calls of one kind, by the durations of the calls
// themselves.
//
//   call   0 ... 5     the planner's first choice: few calls do not pay for a comparison
//          6 ... 23    all choices take turns
//         24 ... 47    the present choice and the two that appear best take turns
//         48 ...       one choice
//   at 128, 256, 512, ...: if calls have become much slower, all of this again
//
// In a *tuning round* the ranks exchange what they have measured
// (executor/collective/plan_prerequisites.h), and all make the same decision: `tune` computes with
// integers only, from numbers that are equal on all ranks. Tuning rounds happen before calls with
// fixed numbers, even if there is nothing to decide. A rank may submit many calls ahead, so it must
// know where they are without the outcome of earlier ones.
//
// The choices take turns call by call, each round in its own order. So a slow phase of the machine
// affects all choices alike, and a program that alternates between two sizes does not give each
// choice its own size. A rank's figure for a choice is the mean of the middle third of its times.
// The slowest rank counts, because in some algorithms one rank is done long before the others.
//
// The choice changes only if another one is at least 5 % faster. Both the model's prediction and
// the measured times count, weighted by their noise, so noise alone does not decide. The choice
// changes at most once each time the number of calls doubles, so it cannot oscillate.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace q7x2 {

class Refinement {
 public:
  static constexpr size_t kMostChoices = 6;

  struct Figure {
    int64_t nanoseconds = 0;  ///< 0: not measured
    int64_t noise = 0;        ///< standard error, in thousandths of the time
  };
  /// By choice.
  using Figures = std::array<Figure, kMostChoices>;

  /// The result of a tuning round, or the state at the beginning.
  struct Event {
    uint64_t call = 0;            ///< the number of the first call for which it holds
    std::vector<size_t> choices;  ///< take turns from then on; the present one is first
    Figures figures = {};         ///< the figures that decided
  };

  /// A single choice: there is nothing to refine.
  Refinement() : Refinement(std::vector<int64_t>{1}) {}
  /// `predicted`: nanoseconds of each of 1 ... kMostChoices choices. Calls begin with the first
  /// one. `first`: the number of the first call. If it is not 0, earlier calls had other choices,
  /// and these are compared at the next power of two.
  explicit Refinement(std::vector<int64_t> predicted, uint64_t first = 0);

  /// Whether a tuning round precedes the call with this number, counted from 0.
  static bool is_tuning_round(uint64_t call);
  /// Whether tuning rounds have anything to decide.
  bool is_active() const { return predicted_.size() > 1; }
  /// Whether several choices take turns.
  bool is_exploring() const { return history_.back().choices.size() > 1; }

  /// The choice for a call. Requires that exactly the tuning rounds up to it have taken place.
  size_t choice_of(uint64_t call) const;
  /// Whether the duration of the call must be recorded.
  bool measures(uint64_t call) const;
  /// Records how long a call took on this rank.
  void record(size_t choice, int64_t nanoseconds);
  /// What this rank has measured so far.
  Figures figures() const;
  /// Makes a decision. `slowest`: the largest figures of all ranks. Equal on all ranks.
  void tune(uint64_t call, const Figures& slowest);

  /// All events, in order; never empty.
  const std::vector<Event>& history() const { return history_; }

 private:
  /// The time of each choice, in thousandths of the time of the present one.
  std::vector<int64_t> ratios(const Figures& slowest) const;
  std::vector<size_t> finalists(const Figures& slowest) const;
  size_t winner(const Figures& slowest) const;
  std::vector<size_t> all_choices() const;
  bool is_slower(const Figures& slowest) const;
  /// From call number `call` on, these choices take turns.
  void decide(uint64_t call, std::vector<size_t> choices, const Figures& figures);

  std::vector<int64_t> predicted_;
  std::vector<std::vector<int64_t>> times_;  // by choice
  std::vector<Event> history_;
  int64_t reference_ = 0;  // time of the present choice when it was chosen; 0: not measured
};

}  // namespace q7x2
