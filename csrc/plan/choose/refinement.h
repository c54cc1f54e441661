// Refinement: several choices could serve calls of one kind. Which one is best is learned from the
// calls themselves.
//
//   call   0 ... 5     the planner's first choice: few calls of a kind pay for nothing
//          6 ... 23    all choices take turns
//         24 ... 47    the present choice and the two that look best take turns
//         48 ...       one choice
//   at 128, 256, 512, ...: if calls now take much longer, all of this again
//
// At a *tuning round* the ranks exchange what they have measured
// (executor/collective/collective.h), and all of them decide alike: `tune` computes with integers
// only, from numbers that are equal on all ranks. Tuning rounds happen at fixed numbers of calls,
// whether there is anything to decide or not. A rank may submit many calls ahead, so it must know
// where they are without knowing the outcome of earlier ones.
//
// The choices take turns call by call, each round in an order of its own: a machine that is slower
// for a while is so for all of them, and a program that calls with two sizes in turn does not give
// each choice a size of its own. A rank's figure for a choice is the mean of the middle third of
// its times. Of the ranks the slowest counts, because in some algorithms a rank is done long before
// the others are.
//
// A choice changes only if another one is 5 % faster after the model's prediction has been taken
// into account, weighted by how noisy the times are. So noise alone does not decide. The choice
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

  /// What a tuning round, or the beginning, led to.
  struct Event {
    uint64_t call = 0;            ///< the first that it counts for
    std::vector<size_t> choices;  ///< that calls take from then on, in turns; the present one first
    Figures figures = {};         ///< that it was decided by
  };

  /// One choice: nothing to refine.
  Refinement() : Refinement(std::vector<int64_t>{1}) {}
  /// `predicted`: nanoseconds, by choice, 1 ... kMostChoices of them. Calls begin with the first.
  /// `first`: the number of the first call; after calls that had other choices they are compared at
  /// the next power of two.
  explicit Refinement(std::vector<int64_t> predicted, uint64_t first = 0);

  /// Whether the call with this number, the first one being 0, is preceded by a tuning round.
  static bool is_tuning_round(uint64_t call);
  /// False: tuning rounds have nothing to decide.
  bool is_active() const { return predicted_.size() > 1; }
  /// Whether several choices take turns.
  bool is_exploring() const { return history_.back().choices.size() > 1; }

  /// The choice for a call. All tuning rounds up to it, and none after it, must have taken place.
  size_t choice_of(uint64_t call) const;
  /// Whether the call's time is of use.
  bool measures(uint64_t call) const;
  /// What a call took on this rank.
  void record(size_t choice, int64_t nanoseconds);
  /// What this rank has measured.
  Figures figures() const;
  /// Decides by the largest figures among the ranks. The same on all ranks.
  void tune(uint64_t call, const Figures& slowest);

  /// All that took place, in order; never empty.
  const std::vector<Event>& history() const { return history_; }

 private:
  /// How long each choice takes, in thousandths of what the present one takes.
  std::vector<int64_t> ratios(const Figures& slowest) const;
  std::vector<size_t> finalists(const Figures& slowest) const;
  size_t winner(const Figures& slowest) const;
  std::vector<size_t> all_choices() const;
  bool is_slower(const Figures& slowest) const;
  /// From call number `call` on these take turns.
  void decide(uint64_t call, std::vector<size_t> choices, const Figures& figures);

  std::vector<int64_t> predicted_;
  std::vector<std::vector<int64_t>> times_;  // by choice
  std::vector<Event> history_;
  int64_t reference_ = 0;  // what the present choice took when it was chosen; 0: not measured
};

}  // namespace q7x2
