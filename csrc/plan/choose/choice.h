// What the Planner is asked and what it answers: CallShape, and Choice, Proposal, Candidate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "base/types.h"
#include "fabric/fabric.h"
#include "plan/cost/prediction.h"
#include "plan/ir/edge_coding.h"
#include "plan/ir/plan.h"

namespace q7x2 {

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

}  // namespace q7x2
