// How the planner explains itself: the candidates, and the order of their times.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "level.h"
#include "plan/choose/planner.h"
#include "plan/choose/schedule_search.h"
#include "planning.h"
#include "random_fabric.h"

namespace q7x2 {
namespace {

using test::algorithm;
using test::kKiB;
using test::kMiB;
using test::network;

TEST(Planner, ExplainsItsChoice) {
  Planner planner(2, network(4), "");
  for (const size_t bytes : {size_t{4}, 64 * kKiB, 16 * kMiB}) {
    const CallShape shape{Collective::kAllReduce, bytes};
    const std::vector<Candidate> candidates = planner.explain(shape);
    ASSERT_GT(candidates.size(), 3U);
    const Choice choice = planner.choose(shape);
    EXPECT_EQ(candidates[0].algorithm, choice.plan->algorithm);
    EXPECT_EQ(candidates[0].slice_bytes, choice.slice_bytes);
    EXPECT_EQ(candidates[0].window, choice.window);
    for (size_t i = 1; i < candidates.size(); ++i) {
      EXPECT_LE(candidates[i - 1].seconds(), candidates[i].seconds());
      EXPECT_FALSE(candidates[i].prediction.loads.empty());
    }
  }
}

TEST(Planner, ExplainsInTheOrderOfTimeWhateverWasSimulated) {
  for (const int hosts : {16, 48}) {
    for (const size_t bytes : {64 * kKiB, 16 * kMiB}) {
      const auto candidates =
          Planner(0, network(hosts), "").explain({Collective::kAllReduce, bytes});
      for (size_t i = 1; i < candidates.size(); ++i) {
        EXPECT_LE(candidates[i - 1].seconds(), candidates[i].seconds())
            << candidates[i].algorithm << ", " << hosts << " hosts";
      }
    }
  }
}

TEST(Planner, MeasuredTimesStandFirstAndOthersInTheOrderOfTime) {
  std::vector<Rating> ratings(3);
  ratings[0].prediction.seconds = 2e-3;
  ratings[0].is_simulated = true;
  ratings[1].prediction.seconds = 1e-3;
  ratings[2].prediction.seconds = 1e-3;
  ratings[2].measured = 3e-3;
  sort_ratings(ratings);
  EXPECT_EQ(ratings[0].measured, 3e-3);
  EXPECT_EQ(ratings[1].seconds(), 1e-3);
  EXPECT_TRUE(ratings[2].is_simulated);
  // A wire bounds both alike.
  ratings[1].prediction.seconds_after_pause = 0.9e-3;
  ratings[2].prediction.seconds = 1.0000001e-3;
  ratings[2].prediction.seconds_after_pause = 0.8e-3;
  sort_ratings(ratings);
  EXPECT_EQ(ratings[1].prediction.seconds_after_pause, 0.8e-3);
}

// Nothing is busy for longer than the call takes, whatever was estimated, corrected or simulated.
TEST(Planner, NoResourceIsBusyForLongerThanTheCall) {
  std::vector<test::FabricPtr> fabrics = {test::one_host(4), network(5), network(16), network(48)};
  for (const int ranks : {2, 5, 8, 24}) {
    for (uint64_t seed = 0; seed < test::at_level<uint64_t>(6, 50); ++seed) {
      fabrics.push_back(std::make_shared<const Fabric>(random_fabric(ranks, seed)));
    }
  }
  for (const test::FabricPtr& fabric : fabrics) {
    const Planner planner(0, fabric, "");
    for (const auto op : {Collective::kAllReduce, Collective::kAllToAll, Collective::kGather}) {
      for (const size_t bytes : {size_t{4}, size_t{3000}, 64 * kKiB, 3 * kMiB}) {
        for (const Candidate& each : planner.explain({op, bytes, 0})) {
          for (const Prediction::Load& load : each.prediction.loads) {
            EXPECT_LE(load.busy, each.prediction.seconds * (1 + 1e-9))
                << each.algorithm << ", " << load.name << ", " << bytes << " bytes of "
                << to_string(op) << " by " << fabric->world_size()
                << (each.is_simulated ? ", simulated" : ", estimated");
          }
        }
      }
    }
  }
}

TEST(Planner, ExplainsTheCallItselfNotItsSizeClass) {
  Planner planner(0, network(4), "");
  const std::vector<Candidate> whole = planner.explain({Collective::kAllReduce, 16 * kMiB});
  const std::vector<Candidate> less = planner.explain({Collective::kAllReduce, 12 * kMiB});
  ASSERT_EQ(whole.size(), less.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(less[i].algorithm, whole[i].algorithm) << "one choice for both";
    EXPECT_EQ(less[i].slice_bytes, whole[i].slice_bytes);
    EXPECT_NEAR(less[i].seconds() / whole[i].seconds(), 0.75, 0.05) << less[i].algorithm;
  }
}

}  // namespace
}  // namespace q7x2
