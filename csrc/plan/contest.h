// Contest: the algorithms that could serve one call, in the order of the time they would take.
//
// The cost model estimates all of them, cut in all ways. Those that come near the best one are then
// simulated, the best first, as long as the simulations stay cheap: among few ranks that is all of
// them, among hundreds none. Where the Fabric has measured times for calls of about that size,
// those decide instead.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "fabric/fabric.h"
#include "plan/algorithm_names.h"
#include "plan/contender.h"
#include "plan/edge_coding.h"
#include "plan/generators.h"
#include "plan/planner.h"

namespace q7x2 {

/// A contender's best cut.
struct Standing {
  std::shared_ptr<Contender> contender;
  Cut cut;
  Prediction prediction;
  bool is_simulated = false;
  std::optional<double> measured = {};
  /// Of an estimate: by how much simulations of other contenders took longer than their estimates.
  double correction = 1;

  double seconds() const { return measured.value_or(prediction.seconds); }
  void correct(double factor) {
    correction = factor;
    prediction.seconds *= factor;
    prediction.seconds_after_pause *= factor;
    prediction.first_slice_seconds *= factor;
  }
};

/// Measured ones first, each by time. Calls in a row that one wire bounds take equally long; of
/// those, the one that takes less after a pause is first.
void sort_standings(std::vector<Standing>& standings);

class Contest {
 public:
  using FindSchedule = std::function<std::shared_ptr<const Schedule>(const Generator& generator,
                                                                     const ScheduleRequest&)>;

  /// `site` and `shape` must stay. `wishes`: algorithms that alone take part; none: all. `own`:
  /// a Schedule that alone takes part, whatever the wishes. Throws
  /// Error(kInvalidArgument) where no algorithm offers the call.
  Contest(const CallShape& shape, const Site& site, const std::vector<AlgorithmName>& wishes,
          FindSchedule find_schedule, std::shared_ptr<const Schedule> own = nullptr);

  /// The contenders that the Fabric has measured times for.
  std::vector<Standing> measured();
  /// All contenders. `max_ops`: how many ops may be simulated, all runs together.
  std::vector<Standing> predicted(double max_ops);
  /// The Schedule of a contender; null: there is none of that name.
  std::shared_ptr<const Schedule> schedule(const std::string& algorithm, Edges edges) const;
  /// What was found for the size class, for the call itself.
  void resize(Standing& standing) const;

 private:
  struct Entrant {
    const Generator* generator;  ///< null: there is an own Schedule
    int parameter;
    EdgeCoding edges;
    std::shared_ptr<const Schedule> own = nullptr;
    std::shared_ptr<Contender> contender = nullptr;
  };

  void find_entrants(const std::vector<AlgorithmName>& wishes);
  ScheduleRequest request_of(const Entrant& entrant) const;
  /// Whether the call may be served so.
  bool may_enter(const Entrant& entrant) const;
  void check_parameter(const AlgorithmName& wish, const Generator& generator,
                       const std::vector<int>& parameters) const;
  static std::string name_of(const Entrant& entrant);
  std::shared_ptr<const Schedule> schedule_of(const Entrant& entrant) const;
  Contender& enter(Entrant& entrant);
  /// The ways to cut the data for a contender.
  std::vector<Cut> cuts(const Contender& contender) const;
  /// Bytes of a message with one contribution for a byte of its part.
  double ratio(const Contender& contender) const;
  std::span<const size_t> parts(const Contender& contender) const;
  bool floods(const Contender& contender, const Cut& cut) const;
  bool is_sparse(const Contender& contender) const;
  /// Simulates those that could be the best, corrects the estimates of the others by what the
  /// simulations took, and sorts again.
  void simulate(std::vector<Standing>& standings, double max_ops) const;
  void try_wide_window(Standing& standing, double max_ops) const;
  std::vector<Fabric::Tuned> nearest_times() const;

  const CallShape& shape_;
  const Site& site_;
  const FindSchedule find_schedule_;
  const size_t bytes_;
  const CodingCost coding_;
  const std::vector<EdgeCoding> edges_;
  std::vector<Entrant> entrants_;
};

/// The smallest power of two that is not less than the bytes.
size_t size_class(size_t bytes);

}  // namespace q7x2
