// The question to the Planner, CallShape, and its answers: Choice, Proposal and Candidate.
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

/// All that a choice depends on. For one call, every field is equal on all ranks of the group, so
/// all ranks make the same choice without communication.
struct CallShape {
  Collective collective;
  /// kFlat: bytes of the whole buffer. kBlocked: bytes of one part if all parts are equal,
  /// otherwise `kUneven`.
  size_t bytes = 0;
  int root = -1;
  /// Whether partial sums must be held in a wider type. Then only Plans that round once may be
  /// chosen.
  bool wide_accumulation = false;
  /// The only algorithms for this call, instead of the planner's forced algorithms; empty: those.
  std::string algorithms = {};
  bool is_direct = false;  ///< messages go from device to device
  /// The name of the call's codec; empty: none.
  std::string codec = {};
  DType dtype = DType::kBytes;  ///< element type of a coded call; the cost of coding depends on it
  EdgeWish edges = EdgeWish::kAuto;  ///< for a coded call: which messages are coded
  /// The cost of the codec on a Fabric, equal for calls with the same codec. Only called if no
  /// choice is remembered. Empty: nothing is coded.
  std::function<CodingCost(const Fabric&)> coding = {};
  bool exact_sums = false;  ///< whether the codec encodes sums without loss
  /// Whether an owner must encode the sum, because the codec defines the result by that: a vote, or
  /// a selection of few elements.
  bool sums_by_owners = false;

  static constexpr size_t kUneven = ~size_t{0};
};

/// Calls with the same key share a choice. The key has the collective, the root, wide accumulation,
/// the size class (the smallest power of two that is not less than the bytes), the call's
/// algorithms, whether it is direct, and its codec with element type and edges.
using CallKey =
    std::tuple<Collective, int, bool, size_t, std::string, bool, std::string, DType, EdgeWish>;
CallKey key_of(const CallShape& shape);

struct Choice {
  std::shared_ptr<const Plan> plan;
  /// kFlat: bytes of a slice, a multiple of 64 times the sum of the part weights. kBlocked: bytes
  /// of a part in a slice, a multiple of 64. Never zero, and equal on all ranks. So slices begin at
  /// whole elements of every dtype, and so do the parts of all slices except a shorter last one.
  /// `Plan::part_begin` computes where the parts of a slice begin.
  size_t slice_bytes = 0;
  /// The length of a scratch block and of the longest part of a slice, in bytes. A multiple of 64.
  size_t part_bytes = 0;
  /// The number of slices in progress at once, 1 ... kMaxWindow.
  int window = 1;
  /// The predicted duration of the call.
  double seconds = 0;

  static constexpr int kMaxWindow = 16;
};

/// A choice without its Plan: rank 0 sends it to the other ranks, and servers get it with an order.
struct Proposal {
  std::string algorithm;
  Edges edges = Edges::kNone;  ///< which edges are coded
  size_t slice_bytes = 0;      ///< this and the next three: see Choice
  size_t part_bytes = 0;
  int window = 1;
  double seconds = 0;
  uint64_t digest = 0;  ///< digest of the Schedule
};

/// An algorithm that could serve a call, with its best way to cut the data.
struct Candidate {
  std::string algorithm;       ///< "ring", "aggregator:2"
  Edges edges = Edges::kNone;  ///< which edges are coded
  size_t slice_bytes = 0;
  int window = 1;
  Prediction prediction;
  bool is_simulated = false;       ///< otherwise the prediction is the cost model's estimate
  std::optional<double> measured;  ///< in seconds, from the tuned times of the Fabric
  uint64_t plans = 0;              ///< see Schedule::plans_digest

  double seconds() const { return measured.value_or(prediction.seconds); }
};

}  // namespace q7x2
