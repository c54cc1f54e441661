// Definitions for both the writer and the reader of a Schedule's JSON.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <utility>

#include "plan/ir/plan.h"

namespace q7x2 {

inline constexpr int kPlanFormat = 1;

/// The names of blocks; coded blocks have no name.
inline constexpr std::array<std::pair<const char*, Space>, 3> kSpaceNames = {{
    {"in", Space::kInput},
    {"out", Space::kOutput},
    {"scratch", Space::kScratch},
}};

/// The block that PlanBuilder takes the length from, if the op does not name one.
inline std::optional<Block> usual_length(OpKind kind, std::span<const Block> sources,
                                         Block destination) {
  if (kind != OpKind::kSend && destination.is_part()) return destination;
  for (const Block& source : sources) {
    if (source.is_part()) return source;
  }
  return std::nullopt;
}

}  // namespace q7x2
