// ScheduleSearch: finds the Schedules that could serve a call, and orders them by predicted time.
//
// The cost model estimates each of them, with each way to cut the data. Those with an estimate near
// the best one are then simulated, the best first, as long as the simulations stay cheap: with few
// ranks all of them, with hundreds of ranks none. If the Fabric has measured times for calls of
// about that size, these decide instead.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "fabric/fabric.h"
#include "plan/algorithms/algorithm_names.h"
#include "plan/algorithms/generators.h"
#include "plan/choose/choice.h"
#include "plan/choose/priced_schedule.h"
#include "plan/ir/edge_coding.h"

namespace q7x2 {

/// A Schedule with its best cut, and the time that it takes.
struct Rating {
  std::shared_ptr<PricedSchedule> priced;
  Cut cut;
  Prediction prediction;
  bool is_simulated = false;
  std::optional<double> measured = {};
  /// For an estimate: the median ratio of simulated to estimated times of the other Schedules.
  double correction = 1;

  double seconds() const { return measured.value_or(prediction.seconds); }
  /// Multiplies an estimate by `factor`, but not below the time that its busiest resource needs.
  void correct(double factor);
};

/// Sorts by time, the measured ones first. Ratings that are limited by the same wire take equally
/// long in a row of calls; among those, the one that takes less time after a pause is first.
void sort_ratings(std::vector<Rating>& ratings);

class ScheduleSearch {
 public:
  using FindSchedule = std::function<std::shared_ptr<const Schedule>(const Generator& generator,
                                                                     const ScheduleRequest&)>;

  /// `site` and `shape` must outlive it. `wishes`: the only algorithms to consider; empty: all.
  /// `own`: the only Schedule to consider, whatever the wishes. Throws Error(kInvalidArgument) if
  /// no algorithm offers the call.
  ScheduleSearch(const CallShape& shape, const Site& site, const std::vector<AlgorithmName>& wishes,
                 FindSchedule find_schedule, std::shared_ptr<const Schedule> own = nullptr);

  /// The ratings of Schedules that the Fabric has measured times for.
  std::vector<Rating> measured();
  /// The ratings of all Schedules: the one to choose, then the others by time. The one to choose is
  /// the fastest, unless the call's edges are "auto": see kWorthMoreLoss. `max_ops`: limit of the
  /// ops that are simulated, in all runs together, for each coding. So each coding is examined as
  /// closely as if the call had named it.
  std::vector<Rating> predicted(double max_ops);
  /// The Schedule of an algorithm; null if there is no algorithm with that name.
  std::shared_ptr<const Schedule> schedule(const std::string& algorithm, Edges edges) const;
  /// Turns a rating for the size class into a rating for the size of the call.
  void resize(Rating& rating) const;

 private:
  /// An algorithm with its parameter, and the edges that are coded.
  struct Variant {
    const Generator* generator;  ///< null if `own` is set
    int parameter;
    EdgeCoding edges;
    std::shared_ptr<const Schedule> own = nullptr;
    std::shared_ptr<PricedSchedule> priced = nullptr;  ///< null until it is needed
  };

  void find_variants(const std::vector<AlgorithmName>& wishes);
  ScheduleRequest request_of(const Variant& variant) const;
  /// Whether the options of the call allow the variant.
  bool is_allowed(const Variant& variant) const;
  void check_parameter(const AlgorithmName& wish, const Generator& generator,
                       const std::vector<int>& parameters) const;
  static std::string name_of(const Variant& variant);
  std::shared_ptr<const Schedule> schedule_of(const Variant& variant) const;
  PricedSchedule& price(Variant& variant);
  /// The ways to cut the data for a Schedule.
  std::vector<Cut> cuts(const PricedSchedule& schedule) const;
  /// Bytes of a message with one contribution, per byte of its part.
  double ratio(const PricedSchedule& schedule) const;
  std::span<const size_t> parts(const PricedSchedule& schedule) const;
  bool floods(const PricedSchedule& schedule, const Cut& cut) const;
  bool is_sparse(const PricedSchedule& schedule) const;
  /// The ratings of all variants with one coding, by the cost model's estimates, each with its best
  /// cut.
  std::vector<Rating> estimated(const EdgeCoding& edges);
  /// Moves one of the sorted ratings to the front: the one with the least loss among those that are
  /// about as fast as the first.
  void prefer_less_loss(std::vector<Rating>& ratings) const;
  /// Simulates the ratings that could be the best: all of them for their first slices, the best
  /// ones into their steady state, and the very best with a wide window. Sorts by the result.
  void simulate(std::vector<Rating>& ratings, double max_ops) const;
  /// Simulates the first slices of the ratings that could be the best, and corrects the estimates
  /// of the others by the ratio of simulated to estimated times. Returns how many ops
  /// are left.
  double simulate_first_slices(std::vector<Rating>& ratings, double max_ops) const;
  struct Run {
    Cut cut;
    int slices;
  };
  /// How the first slices of a rating are simulated.
  std::vector<Run> runs(const Rating& rating, double max_ops) const;
  void try_wide_window(Rating& rating, double max_ops) const;
  std::vector<Fabric::Tuned> nearest_times() const;

  const CallShape& shape_;
  const Site& site_;
  const FindSchedule find_schedule_;
  const size_t bytes_;
  const CodingCost coding_;
  const bool is_far_;  ///< whether some hosts are far from others
  const std::vector<EdgeCoding> edges_;
  std::vector<Variant> variants_;
};

/// The smallest power of two that is not less than `bytes`.
size_t size_class(size_t bytes);

}  // namespace q7x2
