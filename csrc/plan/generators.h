// The table of algorithms: who can make a Plan for a collective, and what it would cost.
//
// An algorithm is one file in this folder. It defines `std::vector<Generator> <name>_generators()`,
// an entry for each collective it offers, and stands with one line in generators.cpp.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/types.h"
#include "plan/plan.h"

namespace q7x2 {

/// What a message and a fold cost, in seconds: the alpha-beta-gamma model with two refinements.
/// Sending k messages of m bytes at once takes alpha + k * (overhead + m * beta).
struct LinkCost {
  double alpha;     ///< from one rank to another, whatever the size
  double overhead;  ///< CPU time for each further message of the same step
  double beta;      ///< per byte through one rank's link
  double gamma;     ///< per byte folded into a reduction
  double incast;    ///< share of the bandwidth lost for each further sender to one rank at once

  /// `count` messages of `bytes` bytes each that a rank sends or receives in one step.
  double step(double count, double bytes, double concurrent_senders = 1) const {
    return alpha + count * (overhead + bytes * beta * (1 + incast * (concurrent_senders - 1)));
  }
};

struct Generator {
  std::string name;  ///< the algorithm's name, for example "ring"
  Collective collective;
  Plan (*generate)(const PlanRequest& request);
  /// Predicted seconds. `bytes` as in CallShape: flat shapes the whole buffer, else one part.
  double (*cost)(const LinkCost& link, double bytes, int world_size) = nullptr;
  /// See Plan::rounds_once.
  bool rounds_once = false;
  /// More ranks than this would need unreasonably many messages or scratch blocks.
  int max_world_size = 1 << 15;
  /// The values of PlanRequest::parameter that are worth considering; none: the algorithm has
  /// nothing to offer for this request, as a hierarchy where all hosts are alike. Null: it has no
  /// parameter and always applies.
  std::vector<int> (*parameters)(const PlanRequest& request) = nullptr;

  bool applies(const PlanRequest& request) const {
    return request.collective == collective && request.world_size <= max_world_size &&
           (parameters == nullptr || !parameters(request).empty());
  }
};

/// All generators; of equally cheap ones the first is chosen.
std::span<const Generator> generators();

}  // namespace q7x2
