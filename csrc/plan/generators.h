// The table of algorithms: who can make a Plan for a collective.
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

struct Generator {
  std::string name;  ///< the algorithm's name, for example "ring"
  Collective collective;
  Plan (*generate)(const PlanRequest& request);
  /// See Plan::rounds_once.
  bool rounds_once = false;
  /// More ranks than this would need unreasonably many messages or scratch blocks.
  int max_world_size = 1 << 15;
  /// The values of PlanRequest::parameter that are worth considering; none: the algorithm has
  /// nothing to offer for this request, as a hierarchy where all hosts are alike. Null: it has no
  /// parameter and always applies.
  std::vector<int> (*parameters)(const PlanRequest& request) = nullptr;
  /// Its Plans are for calls with a codec, and for no others.
  bool coded = false;
  /// They encode sums of sums: for codecs only that send sums as they are.
  bool encodes_sums_again = false;

  bool applies(const PlanRequest& request) const {
    return request.collective == collective && request.world_size <= max_world_size &&
           (parameters == nullptr || !parameters(request).empty());
  }

  /// "aggregator:2", or "ring" where the parameter is 0.
  std::string full_name(int parameter) const {
    return parameter == 0 ? name : name + ":" + std::to_string(parameter);
  }
};

/// All generators; of equally cheap ones the first is chosen.
std::span<const Generator> generators();

}  // namespace q7x2
