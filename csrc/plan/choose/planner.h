// Planner: chooses the Plan, the slice length and the window for a call, and remembers the choice.
//
// Each algorithm that offers the collective is cut into slices in a few ways. The cost model
// estimates all of these candidates, and the simulator runs those that could be the best. The
// planner chooses the one with the shortest time; see plan/choose/schedule_search.h. If the Fabric
// has measured times for calls of about that size, these decide instead.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/recent.h"
#include "fabric/fabric.h"
#include "plan/algorithms/algorithm_names.h"
#include "plan/choose/choice.h"
#include "plan/cost/site.h"
#include "plan/files/plan_files.h"
#include "plan/ir/edge_coding.h"
#include "plan/ir/schedule.h"

namespace q7x2 {

class ScheduleSearch;
struct Generator;
struct Rating;

/// One per group. Thread-safe.
class Planner {
 public:
  /// `fabric`: the Fabric of the group's ranks, equal on all of them.
  /// `forced`: the only algorithms that may be chosen, from `Q7X2_ALGO` ("ring,aggregator:2");
  /// empty: all. If no forced algorithm offers a collective, all algorithms may be chosen for it.
  /// Throws as parse_algorithms. `own`: user-defined Schedules. They are the only ones for the
  /// calls that they serve, except for calls that name their algorithms, that have a codec, or that
  /// must round once if the Schedule does not.
  Planner(int rank, std::shared_ptr<const Fabric> fabric, const std::string& forced,
          OwnPlans own = {});

  /// Throws Error(kInvalidArgument) if a rooted collective has no valid root, or if the call's
  /// algorithms do not exist.
  Choice choose(const CallShape& shape);

  /// At most `most` ways to serve the call; the first is the one that `choose` would choose. The
  /// others are other algorithms, each with its best parameter, that make other Plans and may be as
  /// fast: their predictions differ by no more than the error of the model. There are no others if
  /// the algorithms are forced, or if the times were measured. Throws as `choose`.
  std::vector<Proposal> propose(const CallShape& shape, size_t most) const;
  /// Throws what `choose` would throw, without planning.
  void check(const CallShape& shape) const;
  /// The Schedule that an algorithm with its parameter generates for the call, whether or not it is
  /// forced. Null if the algorithm does not offer the call.
  std::shared_ptr<const Schedule> schedule(const CallShape& shape, const std::string& algorithm,
                                           Edges edges = Edges::kNone) const;

  /// All candidates for the call: the one that would be chosen first, then the others by time.
  /// Throws as `choose`. `simulate`: simulates all candidates within reach of the best one, however
  /// long that takes, and returns the best one only.
  std::vector<Candidate> explain(const CallShape& shape, bool simulate = false) const;

  std::shared_ptr<const Fabric> fabric() const;
  /// A planner with the same settings, for another Fabric of the same ranks.
  std::shared_ptr<Planner> with(std::shared_ptr<const Fabric> fabric) const {
    return std::make_shared<Planner>(rank_, std::move(fabric), to_string(forced_), own_);
  }
  /// Replaces the Fabric by another one of the same ranks, for all later calls. All ranks must call
  /// it between the same two collectives.
  void set_fabric(std::shared_ptr<const Fabric> fabric);

 private:
  using ScheduleKey = std::tuple<const Generator*, int, int, bool>;

  void check_root(const CallShape& shape) const;
  /// The site for the call's messages: the hosts' or the devices'.
  const Site& site_for(const CallShape& shape) const;
  std::shared_ptr<const Schedule> own_for(const CallShape& shape) const;
  ScheduleSearch search(const CallShape& shape) const;
  ScheduleSearch search(const CallShape& shape, const std::vector<AlgorithmName>& wishes) const;
  std::vector<Rating> ratings(const CallShape& shape) const;

  const int rank_;
  const std::vector<AlgorithmName> forced_;
  const OwnPlans own_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Fabric> fabric_;
  // The site of the Fabric, and that of its devices, which is made on first use.
  std::shared_ptr<const Site> site_;
  mutable std::shared_ptr<const Fabric> device_fabric_;
  mutable std::shared_ptr<const Site> device_site_;
  Recent<CallKey, Choice> choices_;
  /// A Schedule is generated once, for calls of all sizes.
  mutable Recent<ScheduleKey, std::shared_ptr<const Schedule>> schedules_;
};

}  // namespace q7x2
