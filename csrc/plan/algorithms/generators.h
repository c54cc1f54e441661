// The table of algorithms: the generators of Schedules for each collective.
//
// An algorithm is one file in this folder. It defines `std::vector<Generator> <name>_generators()`,
// with an entry per collective that it offers, and has one line in generators.cpp.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/types.h"
#include "plan/ir/edge_coding.h"
#include "plan/ir/schedule.h"

namespace q7x2 {

/// On which edges the coding pass (plan/ir/coding_pass.h) keeps all ranks bit-identical. This does
/// not say how often it encodes sums.
enum class Codable : uint8_t {
  kNever,
  kOnAllEdges,  ///< only if all edges are coded
  kOnAnyEdges,
};

struct Generator {
  std::string name;  ///< the algorithm's name, for example "ring"
  Collective collective;
  Schedule (*generate)(const ScheduleRequest& request);
  /// See Plan::rounds_once.
  bool rounds_once = false;
  /// For more ranks than this it would need unreasonably many messages or scratch blocks.
  int max_world_size = 1 << 15;
  /// The values of ScheduleRequest::parameter that are worth considering. Empty: the algorithm has
  /// nothing to offer for this request, for example a hierarchy if all hosts are alike. Null: it
  /// has no parameter and always applies.
  std::vector<int> (*parameters)(const ScheduleRequest& request) = nullptr;
  Codable codable = Codable::kNever;

  bool applies(const ScheduleRequest& request) const {
    return request.collective == collective && request.world_size <= max_world_size &&
           (parameters == nullptr || !parameters(request).empty());
  }

  /// Whether `edges` may be coded.
  bool may_code(const EdgeCoding& edges) const {
    return !edges.any() || codable == Codable::kOnAnyEdges ||
           (codable == Codable::kOnAllEdges && edges.num_zones() == edges.world_size());
  }

  /// "aggregator:2", or "ring" if the parameter is 0.
  std::string full_name(int parameter) const {
    return parameter == 0 ? name : name + ":" + std::to_string(parameter);
  }
};

/// All generators; among equally cheap ones the first is chosen.
std::span<const Generator> generators();

}  // namespace q7x2
