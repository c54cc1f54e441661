// ScheduleSearch: the Schedules that could serve one call, ordered by the time that they would
// take.
//
// The cost model estimates each of them, with each way to cut the data. Those whose estimate is
// near the best one are then simulated, the best first, as long as the simulations stay cheap: all
// of them among few ranks, none among hundreds. If the Fabric has measured times for calls of about
// that size, those decide instead.
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
  /// Of an estimate: the median ratio of simulated to estimated times of the other Schedules.
  double correction = 1;

  double seconds() const { return measured.value_or(prediction.seconds); }
  /// Whatever the others show, no call is shorter than what its busiest resource has to do.
  void correct(double factor);
};

/// By time, the measured ones first. Calls in a row that one wire bounds take equally long; of
/// those, the one that takes less time after a pause is first.
void sort_ratings(std::vector<Rating>& ratings);

class ScheduleSearch {
 public:
  using FindSchedule = std::function<std::shared_ptr<const Schedule>(const Generator& generator,
                                                                     const ScheduleRequest&)>;

  /// `site` and `shape` must stay. `wishes`: the only algorithms to consider; if
  /// empty, all are. `own`: the only Schedule to consider, whatever the wishes. Throws
  /// Error(kInvalidArgument) if no algorithm offers the call.
  ScheduleSearch(const CallShape& shape, const Site& site, const std::vector<AlgorithmName>& wishes,
                 FindSchedule find_schedule, std::shared_ptr<const Schedule> own = nullptr);

  /// Those that the Fabric has measured times for.
  std::vector<Rating> measured();
  /// All of them: the one to choose, then the others by time. It is the fastest one, but where the
  /// call's edges are "auto": see kWorthMoreLoss. `max_ops`: how many ops may be simulated, in all
  /// runs together, for each coding that competes. So each coding is looked at as closely as if the
  /// call had named it.
  std::vector<Rating> predicted(double max_ops);
  /// The Schedule of an algorithm; null if there is none of that name.
  std::shared_ptr<const Schedule> schedule(const std::string& algorithm, Edges edges) const;
  /// Turns what was found for the size class into a rating for the call itself.
  void resize(Rating& rating) const;

 private:
  /// An algorithm with its parameter and the edges that are coded.
  struct Variant {
    const Generator* generator;  ///< null if `own` is set
    int parameter;
    EdgeCoding edges;
    std::shared_ptr<const Schedule> own = nullptr;
    std::shared_ptr<PricedSchedule> priced = nullptr;  ///< null until it is needed
  };

  void find_variants(const std::vector<AlgorithmName>& wishes);
  ScheduleRequest request_of(const Variant& variant) const;
  /// Whether the call's options allow it.
  bool is_allowed(const Variant& variant) const;
  void check_parameter(const AlgorithmName& wish, const Generator& generator,
                       const std::vector<int>& parameters) const;
  static std::string name_of(const Variant& variant);
  std::shared_ptr<const Schedule> schedule_of(const Variant& variant) const;
  PricedSchedule& price(Variant& variant);
  /// The ways to cut the data.
  std::vector<Cut> cuts(const PricedSchedule& schedule) const;
  /// Bytes of a message with one contribution, per byte of its part.
  double ratio(const PricedSchedule& schedule) const;
  std::span<const size_t> parts(const PricedSchedule& schedule) const;
  bool floods(const PricedSchedule& schedule, const Cut& cut) const;
  bool is_sparse(const PricedSchedule& schedule) const;
  /// The variants with one coding by the cost model's estimates, each with its best cut.
  std::vector<Rating> estimated(const EdgeCoding& edges);
  /// Of sorted ratings puts the one first that loses least among those about as fast as the first.
  void prefer_less_loss(std::vector<Rating>& ratings) const;
  /// Simulates those that could be the best, corrects the estimates of the others by what the
  /// simulations took, and sorts again.
  void simulate(std::vector<Rating>& ratings, double max_ops) const;
  void try_wide_window(Rating& rating, double max_ops) const;
  std::vector<Fabric::Tuned> nearest_times() const;

  const CallShape& shape_;
  const Site& site_;
  const FindSchedule find_schedule_;
  const size_t bytes_;
  const CodingCost coding_;
  const bool is_far_;  ///< some hosts from others
  const std::vector<EdgeCoding> edges_;
  std::vector<Variant> variants_;
};

/// The smallest power of two that is not less than the bytes.
size_t size_class(size_t bytes);

}  // namespace q7x2
