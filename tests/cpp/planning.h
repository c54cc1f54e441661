// Sizes, fabrics and short names for tests of the planner.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "plan/choose/planner.h"

namespace q7x2::test {

inline constexpr size_t kKiB = size_t{1} << 10;
inline constexpr size_t kMiB = size_t{1} << 20;
inline constexpr double kGigabit = 125e6;

using FabricPtr = std::shared_ptr<const Fabric>;

inline FabricPtr one_host(int ranks) {
  return std::make_shared<Fabric>(Fabric::one_host_of(ranks, ranks));
}

inline FabricPtr network(int hosts) {
  return std::make_shared<Fabric>(Fabric::uniform(hosts, 1, kGigabit));
}

inline std::string algorithm(Planner& planner, const CallShape& shape) {
  return planner.choose(shape).plan->algorithm;
}

inline std::string algorithm(const FabricPtr& fabric, const CallShape& shape) {
  Planner planner(0, fabric, "");
  return algorithm(planner, shape);
}

}  // namespace q7x2::test
