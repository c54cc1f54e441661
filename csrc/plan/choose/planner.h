// Planner: picks the Plan, the slice length and the window for a call, and remembers the choice.
//
// Every algorithm that offers the collective is cut into slices in a few ways. The cost model
// estimates all of these candidates, the simulator runs those that could be the best, and the one
// that takes the least time is chosen; see plan/choose/schedule_search.h. Where the Fabric has
// measured times for calls of about that size, those decide instead.
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
  /// `fabric`: of the group's ranks, equal on all of them.
  /// `forced`: algorithms that alone may be chosen, from `Q7X2_ALGO` ("ring,aggregator:2"), empty
  /// for a free choice. Throws as parse_algorithms does. Collectives that none of the forced
  /// algorithms offers are chosen freely.
  /// `own`: Schedules that alone serve the calls that they are for, but for calls that name their
  /// algorithms, that have a codec, or that round once where the Schedule does not.
  Planner(int rank, std::shared_ptr<const Fabric> fabric, const std::string& forced,
          OwnPlans own = {});

  /// Throws Error(kInvalidArgument) where a rooted collective has no valid root, or where the
  /// call's algorithms do not exist.
  Choice choose(const CallShape& shape);

  /// At most `most` ways to serve the call, what `choose` would choose first. The others are other
  /// algorithms, each with its best parameter, which make other Plans and may be as fast as far as
  /// the model can tell: their predictions differ by no more than its error. There are none where
  /// the algorithms are forced, or the times were measured. Throws as `choose`.
  std::vector<Proposal> propose(const CallShape& shape, size_t most) const;
  /// Throws what `choose` would throw, without choosing.
  void check(const CallShape& shape) const;
  /// The Schedule that an algorithm, with its parameter, makes for the call, whether it is forced
  /// or not; null: it does not offer the call.
  std::shared_ptr<const Schedule> schedule(const CallShape& shape, const std::string& algorithm,
                                           Edges edges = Edges::kNone) const;

  /// All candidates for the call, the one that would be chosen first, then by time. Throws as
  /// `choose`.
  /// `simulate`: those within reach of the best are simulated, however long that takes.
  std::vector<Candidate> explain(const CallShape& shape, bool simulate = false) const;

  std::shared_ptr<const Fabric> fabric() const;
  /// The same for another Fabric of the same ranks.
  std::shared_ptr<Planner> with(std::shared_ptr<const Fabric> fabric) const {
    return std::make_shared<Planner>(rank_, std::move(fabric), to_string(forced_), own_);
  }
  /// Chooses by another Fabric of the same ranks from now on. All ranks must do so between the same
  /// two collectives.
  void set_fabric(std::shared_ptr<const Fabric> fabric);

 private:
  using ScheduleKey = std::tuple<const Generator*, int, int, bool>;

  void check_root(const CallShape& shape) const;
  /// What a call's messages pass through.
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
  // Of the Fabric, and of what it says of devices; the latter is made on first use.
  std::shared_ptr<const Site> site_;
  mutable std::shared_ptr<const Fabric> device_fabric_;
  mutable std::shared_ptr<const Site> device_site_;
  Recent<CallKey, Choice> choices_;
  /// Trees are drawn once, for calls of all sizes.
  mutable Recent<ScheduleKey, std::shared_ptr<const Schedule>> schedules_;
};

}  // namespace q7x2
