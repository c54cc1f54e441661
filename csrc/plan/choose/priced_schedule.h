// PricedSchedule: a Schedule that could serve a call, the ways to cut the call's data for it, and
// the time that each of them takes.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plan/cost/cost_model.h"
#include "plan/cost/simulator.h"
#include "plan/ir/schedule.h"

namespace q7x2 {

/// How the data is cut; see Choice.
struct Cut {
  size_t slice_bytes;
  size_t part_bytes;
  int window;
};

class PricedSchedule {
 public:
  /// `site` must stay. `is_uneven`: parts have lengths of their own.
  PricedSchedule(std::shared_ptr<const Schedule> schedule, const Site& site,
                 const CodingCost& coding, bool is_uneven);

  const Schedule& schedule() const { return *schedule_; }
  const std::string& name() const { return schedule_->algorithm(); }

  /// Into parts of at most `part_bytes`, less where memory says so.
  Cut cut(size_t bytes, size_t part_bytes, int window) const;
  /// Into slices of `slice_bytes`, or the next longer ones that are possible; shorter ones where
  /// memory says so.
  Cut in_slices(size_t bytes, size_t slice_bytes, int window) const;

  /// By the cost model.
  double estimate(size_t bytes, const Cut& cut) const;
  /// By the cost model, with the loads of all resources.
  Prediction estimate_loads(size_t bytes, const Cut& cut) const;
  /// Seconds that no simulation of it is below: what its busiest wire takes at its full rate.
  double bound(size_t bytes) const;
  /// By the simulator. `max_slices`: see SimulatedCall. For the first simulation Plans are made: of
  /// all ranks, or of those that stand for all if that is possible and worthwhile.
  Prediction simulate(size_t bytes, const Cut& cut, int max_slices);
  /// Of a call that was simulated: seconds after a silence, see SimulatedCall.
  double simulate_after_silence(size_t bytes, const Cut& cut);
  /// About the ops of all ranks for one slice: the price of simulating it.
  double ops() const;
  /// The price of making the Plans of all ranks, in simulated ops; 0 once they are made.
  double making() const;

  /// Whether the window of slices is more than the queue holds of a NIC to which several hosts
  /// send. `ratio`: bytes of a message for a byte of its part.
  bool floods(const Cut& cut, double ratio) const;

 private:
  /// With which the scratch blocks and the staged messages of `window` slices fit their memory.
  size_t longest_part(int window) const;

  std::shared_ptr<const Schedule> schedule_;
  const Site& site_;
  const CodingCost coding_;
  const bool is_uneven_;
  const size_t alignment_;
  const CostModel model_;
  size_t total_weight_ = 1;
  size_t heaviest_ = 1;
  std::optional<Prediction> simulate_some(const SimulatedCall& call);

  std::vector<Plan> plans_;
  std::optional<Simulator> simulator_;  // over plans_
  std::vector<Plan> some_plans_;        // of the ranks that stand for all
  std::optional<Simulator> some_;       // over them
  bool has_looked_for_some_ = false;
};

}  // namespace q7x2
