// Planner: picks the Plan, the slice length and the window for a call, and remembers the choice.
//
// Every algorithm that offers the collective is cut into slices in a few ways. The cost model
// estimates all of these candidates, the simulator runs those that could be the best, and the one
// that takes the least time is chosen; see plan/schedule_search.h. Where the Fabric has measured
// times for calls of about that size, those decide instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/recent.h"
#include "base/types.h"
#include "fabric/fabric.h"
#include "plan/algorithm_names.h"
#include "plan/edge_coding.h"
#include "plan/plan.h"
#include "plan/plan_files.h"
#include "plan/schedule.h"
#include "plan/simulator.h"
#include "plan/site.h"

namespace q7x2 {

class ScheduleSearch;
struct Generator;
struct Rating;

/// What a choice depends on. Every field is equal on all ranks of the group for one call, so that
/// all choose alike without talking.
struct CallShape {
  Collective collective;
  /// kFlat: bytes of the whole buffer. kBlocked: bytes of one part where all parts are equal, else
  /// `kUneven`.
  size_t bytes = 0;
  int root = -1;
  /// Partial sums must be held in a wider type: only Plans that round once may be chosen.
  bool wide_accumulation = false;
  /// In place of the planner's forced algorithms, for this call; empty: those.
  std::string algorithms = {};
  bool is_direct = false;  ///< messages go from device to device
  /// The name of the call's codec; empty: none.
  std::string codec = {};
  DType dtype = DType::kBytes;  ///< of a coded call's elements; what coding costs depends on it
  EdgeWish edges = EdgeWish::kAuto;  ///< of a coded call: which messages are coded
  /// What the codec costs on a Fabric, equal for calls with one codec. Called only where no choice
  /// is remembered. Empty: nothing is coded.
  std::function<CodingCost(const Fabric&)> coding = {};
  bool exact_sums = false;  ///< the codec sends sums as they are
  /// An owner has to encode the sum, as that is what the codec promises of it: a vote, or few
  /// elements.
  bool sums_by_owners = false;

  static constexpr size_t kUneven = ~size_t{0};
};

/// Calls that are alike in these share a choice: collective, root, wide accumulation, size class
/// (the smallest power of two that is not less than the bytes), the call's algorithms, whether it
/// is direct, its codec with the type of its elements and its edges.
using CallKey =
    std::tuple<Collective, int, bool, size_t, std::string, bool, std::string, DType, EdgeWish>;
CallKey key_of(const CallShape& shape);

struct Choice {
  std::shared_ptr<const Plan> plan;
  /// kFlat: bytes of a slice, a multiple of 64 times the sum of the part weights. kBlocked: bytes
  /// of a part in a slice, a multiple of 64. Never zero, and equal on all ranks. So slices, and the
  /// parts of all slices but a shorter last one, begin at whole elements of every dtype. Where the
  /// parts of a slice begin says `Plan::part_begin`.
  size_t slice_bytes = 0;
  /// The length of a scratch block, and of the longest part of a slice. A multiple of 64.
  size_t part_bytes = 0;
  /// Slices in progress at once, 1 ... kMaxWindow.
  int window = 1;
  /// How long the call should take.
  double seconds = 0;

  static constexpr int kMaxWindow = 16;
};

/// A choice without its Plan: what rank 0 tells the others, and what a call may be served by.
struct Proposal {
  std::string algorithm;
  Edges edges = Edges::kNone;  ///< that are coded
  size_t slice_bytes = 0;      ///< this and the next three: see Choice
  size_t part_bytes = 0;
  int window = 1;
  double seconds = 0;
  uint64_t digest = 0;  ///< of the Schedule
};

/// An algorithm that could serve a call, cut in the way that suits it best.
struct Candidate {
  std::string algorithm;       ///< "ring", "aggregator:2"
  Edges edges = Edges::kNone;  ///< that are coded
  size_t slice_bytes = 0;
  int window = 1;
  Prediction prediction;
  bool is_simulated = false;       ///< else the prediction is the cost model's estimate
  std::optional<double> measured;  ///< seconds, from the Fabric's tuned times
  uint64_t plans = 0;              ///< see Schedule::plans_digest

  double seconds() const { return measured.value_or(prediction.seconds); }
};

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
