// What a group tries when calls refine a choice: algorithms that may be as fast, and that differ.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "plan/choose/planner.h"
#include "plan/choose/refinement.h"
#include "planning.h"
#include "random_fabric.h"

namespace q7x2 {
namespace {

using test::FabricPtr;
using test::kKiB;
using test::kMiB;
using test::network;
using test::one_host;

// The model's error for short calls makes twice as much between two of them.
constexpr double kFarthest = 1.4;

std::string name_of(const std::string& algorithm) {
  return algorithm.substr(0, algorithm.find(':'));
}

uint64_t plans_of(const Planner& planner, const CallShape& shape, const Proposal& proposal) {
  return planner.schedule(shape, proposal.algorithm, proposal.edges)->plans_digest();
}

// Where one wire bounds several algorithms, the model gives them one time. It does not say that
// they take one time.
TEST(Proposals, EqualPredictionsAreTried) {
  Planner planner(0, network(4), "");
  const CallShape shape{Collective::kAllReduce, 4 * kMiB};
  const std::vector<Proposal> proposals = planner.propose(shape, Refinement::kMostChoices);
  std::set<double> times;
  for (const Proposal& each : proposals) times.insert(each.seconds);
  EXPECT_GE(proposals.size(), 3U);
  EXPECT_LT(times.size(), proposals.size()) << "some have equal times";
}

TEST(Proposals, AreWithinTheModelsErrorAndMakeDifferentPlans) {
  std::vector<FabricPtr> fabrics = {one_host(2), one_host(4), network(2), network(4), network(16)};
  for (uint64_t seed = 0; seed < 20; ++seed) {
    fabrics.push_back(std::make_shared<const Fabric>(random_fabric(6, seed)));
  }
  for (const FabricPtr& fabric : fabrics) {
    for (const auto op : {Collective::kAllReduce, Collective::kAllGather, Collective::kAllToAll}) {
      for (const size_t bytes : {size_t{4}, 64 * kKiB, 16 * kMiB}) {
        Planner planner(0, fabric, "");
        const CallShape shape{op, bytes};
        const std::vector<Proposal> proposals = planner.propose(shape, Refinement::kMostChoices);
        ASSERT_FALSE(proposals.empty());
        EXPECT_LE(proposals.size(), Refinement::kMostChoices);
        EXPECT_EQ(proposals[0].algorithm, planner.choose(shape).plan->algorithm);
        std::set<uint64_t> plans;
        std::set<std::string> names;
        for (const Proposal& each : proposals) {
          EXPECT_LE(each.seconds, proposals[0].seconds * kFarthest) << each.algorithm;
          EXPECT_TRUE(plans.insert(plans_of(planner, shape, each)).second) << each.algorithm;
          EXPECT_TRUE(names.insert(name_of(each.algorithm)).second) << each.algorithm;
        }
      }
    }
  }
}

TEST(Proposals, PlansThatAreEqualCountAsOne) {
  Planner planner(0, network(2), "");
  const CallShape shape{Collective::kAllReduce, 4 * kMiB};
  std::set<uint64_t> plans;
  for (const Candidate& each : planner.explain(shape)) plans.insert(each.plans);
  EXPECT_LT(plans.size(), planner.explain(shape).size()) << "of two ranks many are equal";
  EXPECT_LE(planner.propose(shape, Refinement::kMostChoices).size(), plans.size());
}

TEST(Proposals, ThereIsOneWhereNothingIsToBeLearnt) {
  const CallShape shape{Collective::kAllReduce, 4 * kMiB};
  EXPECT_EQ(Planner(0, network(4), "ring,sra").propose(shape, Refinement::kMostChoices).size(), 1U);
  EXPECT_EQ(Planner(0, network(4), "").propose(shape, 1).size(), 1U);
}

}  // namespace
}  // namespace q7x2
