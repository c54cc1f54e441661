// Times that somebody measured decide what the planner chooses.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "plan/choose/planner.h"
#include "planning.h"

namespace q7x2 {
namespace {

using test::algorithm;
using test::FabricPtr;
using test::kKiB;
using test::kMiB;
using test::network;
using test::one_host;

// What every candidate takes, as somebody might have measured it: the prediction, changed by a
// factor of up to two that no model knows.
std::vector<Fabric::Tuned> measured(const FabricPtr& fabric, const std::vector<size_t>& sizes) {
  std::vector<Fabric::Tuned> times;
  uint32_t noise = 1;
  for (const size_t bytes : sizes) {
    for (const Candidate& each : Planner(0, fabric, "").explain({Collective::kAllReduce, bytes})) {
      noise = noise * 1664525 + 1013904223;
      const double factor = 0.5 + 1.5 * (noise >> 8) / (1 << 24);
      times.push_back({Collective::kAllReduce, fabric->world_size(), bytes, each.algorithm,
                       each.slice_bytes, each.window, each.prediction.seconds * factor});
    }
  }
  return times;
}

TEST(Planner, MeasuredTimesDecide) {
  Fabric tuned = *network(4);
  tuned.tuned = {{Collective::kAllReduce, 4, kMiB, "ring", 128 * kKiB, 2, 1e-3},
                 {Collective::kAllReduce, 4, kMiB, "sra", 256 * kKiB, 4, 2e-3}};
  Planner planner(3, network(4), "");
  planner.choose({Collective::kAllReduce, kMiB});  // must be forgotten
  planner.set_fabric(std::make_shared<Fabric>(tuned));
  const Choice choice = planner.choose({Collective::kAllReduce, kMiB});
  EXPECT_EQ(choice.plan->algorithm, "ring");
  EXPECT_EQ(choice.slice_bytes, 128 * kKiB);
  EXPECT_EQ(choice.window, 2);
  EXPECT_EQ(planner.explain({Collective::kAllReduce, kMiB})[0].measured, 1e-3);
  EXPECT_EQ(algorithm(planner, {Collective::kAllReduce, kMiB, -1, true}), "sra")
      << "the best measured one that rounds once";
  EXPECT_EQ(algorithm(planner, {Collective::kAllReduce, kMiB / 2}), "ring") << "a neighbour";
  EXPECT_EQ(algorithm(planner, {Collective::kAllReduce, 4}), "direct") << "too far away";

  tuned.tuned[0].seconds = 3e-3;
  planner.set_fabric(std::make_shared<Fabric>(tuned));
  EXPECT_EQ(algorithm(planner, {Collective::kAllReduce, kMiB}), "sra");

  tuned.tuned[0].ranks = 8;
  tuned.tuned[0].seconds = 1e-9;
  planner.set_fabric(std::make_shared<Fabric>(tuned));
  EXPECT_EQ(algorithm(planner, {Collective::kAllReduce, kMiB}), "sra") << "those were other groups";
}

TEST(Planner, ATunedCutTakesNoMoreMemoryThanOthers) {
  for (const FabricPtr& plain : {one_host(4), network(4)}) {
    for (const std::string name : {"direct", "ring", "sra", "ccube"}) {
      for (const size_t slice : {size_t{0}, 64 * kMiB, size_t{1} << 52, ~size_t{0}}) {
        for (const int window : {1, 16, 1 << 20}) {
          Fabric tuned = *plain;
          tuned.tuned = {{Collective::kAllReduce, 4, 256 * kMiB, name, slice, window, 1e-9}};
          Planner planner(0, std::make_shared<Fabric>(tuned), "");
          const Choice choice = planner.choose({Collective::kAllReduce, 256 * kMiB});
          const auto in_progress = choice.part_bytes * static_cast<size_t>(choice.window);
          EXPECT_EQ(choice.plan->algorithm, name);
          EXPECT_GT(choice.slice_bytes, 0U);
          EXPECT_LE(choice.window, Choice::kMaxWindow);
          EXPECT_LE(in_progress * choice.plan->num_scratch, 32 * kMiB) << name << " " << slice;
          const size_t staged = plain->one_host() ? choice.plan->num_stages : 0;
          EXPECT_LE(in_progress * staged, 8 * kMiB) << name << " " << slice;
        }
      }
    }
  }
}

TEST(Planner, NeverFarBehindTheBestFixedAlgorithmThatWasMeasured) {
  std::vector<size_t> sizes;
  for (size_t bytes = 4; bytes <= 64 * kMiB; bytes *= 4) sizes.push_back(bytes);
  for (const FabricPtr& plain : {one_host(4), network(3), network(8)}) {
    auto fabric = std::make_shared<Fabric>(*plain);
    fabric->tuned = measured(plain, sizes);
    Planner planner(0, fabric, "");
    for (const size_t bytes : sizes) {
      const Choice choice = planner.choose({Collective::kAllReduce, bytes});
      double best = 1e9;
      double chosen = 1e9;
      for (const Fabric::Tuned& time : fabric->tuned) {
        if (time.bytes != bytes) continue;
        best = std::min(best, time.seconds);
        if (time.algorithm == choice.plan->algorithm) chosen = time.seconds;
      }
      EXPECT_LE(chosen, best * 1.1) << bytes << " bytes";
    }
  }
}

}  // namespace
}  // namespace q7x2
