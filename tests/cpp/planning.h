// Sizes, fabrics and short names for tests of the planner.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plan/choose/planner.h"

namespace q7x2::test {

inline constexpr size_t kKiB = size_t{1} << 10;
inline constexpr size_t kMiB = size_t{1} << 20;
inline constexpr double kGigabit = 125e6;
inline constexpr double kMegabit = kGigabit / 1000;

using FabricPtr = std::shared_ptr<const Fabric>;

inline FabricPtr one_host(int ranks) {
  return std::make_shared<Fabric>(Fabric::one_host_of(ranks, ranks));
}

inline FabricPtr network(int hosts) {
  return std::make_shared<Fabric>(Fabric::uniform(hosts, 1, kGigabit));
}

/// Hosts on one switch.
inline Fabric switched(int hosts, double rate, int ranks = 1) {
  Fabric fabric = Fabric::uniform(hosts, ranks, rate);
  fabric.network = {50e-6, 5e-6, true};
  return fabric;
}

/// Between hosts `a` and `b`, in both directions.
inline void add_slow(Fabric& fabric, int a, int b, double rate) {
  for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
    fabric.pairs.push_back({.from = from, .to = to, .solo = rate});
  }
}

/// `alpha`: seconds that a message takes longer if it leaves its rack.
inline Fabric in_racks(const std::vector<int>& rack_of, double rate, double cable,
                       double alpha = 0) {
  Fabric fabric = switched(static_cast<int>(rack_of.size()), rate);
  const int racks = *std::ranges::max_element(rack_of) + 1;
  fabric.racks.assign(static_cast<size_t>(racks), {"", cable, cable, alpha});
  for (size_t host = 0; host < rack_of.size(); ++host) fabric.hosts[host].rack = rack_of[host];
  return fabric;
}

inline std::string algorithm(Planner& planner, const CallShape& shape) {
  return planner.choose(shape).plan->algorithm;
}

inline std::string algorithm(const FabricPtr& fabric, const CallShape& shape) {
  Planner planner(0, fabric, "");
  return algorithm(planner, shape);
}

}  // namespace q7x2::test
