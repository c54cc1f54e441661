// Every generator, every group size, every root: the checker's proof, and the same Plans run over
// real numbers.
#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "base/types.h"
#include "fabric/fabric.h"
#include "level.h"
#include "plan/algorithms/generators.h"
#include "plan/check/checker.h"
#include "plan/ir/plan.h"
#include "random_fabric.h"
#include "reference_run.h"

namespace q7x2 {
namespace {

const int kMaxRanks = test::at_level(9, 17);
const uint64_t kRandomFabrics = test::at_level(2, 4);

// Each number of ranks with nothing known of the hosts, and on hosts at random.
const std::vector<std::optional<Fabric>>& fabrics_of(int n) {
  static const auto all = [] {
    std::vector<std::vector<std::optional<Fabric>>> by_size(static_cast<size_t>(kMaxRanks) + 1);
    for (int size = 1; size <= kMaxRanks; ++size) {
      by_size[static_cast<size_t>(size)] = {std::nullopt, Fabric::one_host_of(size, 2)};
      for (uint64_t seed = 1; seed <= kRandomFabrics; ++seed) {
        by_size[static_cast<size_t>(size)].push_back(random_fabric(size, seed));
      }
    }
    return by_size;
  }();
  return all[static_cast<size_t>(n)];
}

// `visit(request)` for every group size, fabric, parameter and root that the generator applies to.
template <typename Visit>
void for_each_request(const Generator& generator, Visit visit) {
  for (int n = 1; n <= kMaxRanks; ++n) {
    int fabric_number = 0;
    for (const std::optional<Fabric>& fabric : fabrics_of(n)) {
      ScheduleRequest request{generator.collective, n};
      request.fabric = fabric ? &*fabric : nullptr;
      const int roots = is_rooted(generator.collective) ? n : 1;
      for (int root = 0; root < roots; ++root) {
        request.root = is_rooted(generator.collective) ? root : -1;
        if (!generator.applies(request)) continue;
        std::vector<int> parameters{0};
        if (generator.parameters != nullptr) parameters = generator.parameters(request);
        for (const int parameter : parameters) {
          request.parameter = parameter;
          SCOPED_TRACE("n = " + std::to_string(n) + ", fabric " + std::to_string(fabric_number) +
                       ", root " + std::to_string(root) + ", parameter " +
                       std::to_string(parameter));
          visit(request);
        }
      }
      ++fabric_number;
    }
  }
}

class GeneratorTest : public testing::TestWithParam<size_t> {
 protected:
  const Generator& generator() const { return generators()[GetParam()]; }
};

TEST_P(GeneratorTest, PassesTheChecker) {
  for_each_request(generator(), [&](const ScheduleRequest& request) {
    const std::vector<Plan> plans = generator().generate(request).project_all();
    EXPECT_NO_THROW(check_plans(plans)) << to_string(plans[0]);
    EXPECT_EQ(
        plans[0].algorithm,
        generator().name + (request.parameter > 0 ? ":" + std::to_string(request.parameter) : ""));
    EXPECT_EQ(plans[0].rounds_once, generator().rounds_once);
  });
}

TEST_P(GeneratorTest, ComputesTheNaiveResult) {
  for_each_request(generator(), [&](const ScheduleRequest& request) {
    if (HasFailure()) return;
    const std::vector<Plan> plans = generator().generate(request).project_all();
    for (const auto& [length, slice] : {std::pair<size_t, size_t>{1, 64}, {37, 64}, {131, 48}}) {
      SCOPED_TRACE(std::to_string(length) + " elements in slices of " + std::to_string(slice));
      run_and_compare(plans, length, slice);
      if (HasFailure()) FAIL() << to_string(plans[0]);
    }
  });
}

// By source and destination: messages, and their bytes in units of a slice or of a part.
using Traffic = std::map<std::pair<int, int>, std::pair<size_t, double>>;

Traffic traffic_of(const Schedule& schedule) {
  Traffic traffic;
  const auto add = [&](const Round& round, const Edge& edge) {
    auto& [messages, bytes] = traffic[{edge.from, edge.to}];
    messages += edge.messages * static_cast<size_t>(round.repeats);
    bytes += edge.share * edge.messages * round.repeats;
  };
  for (const Round& round : schedule.rounds()) {
    for (const Edge& edge : round.edges) add(round, edge);
    for (const Cross& cross : round.crosses) {
      for (size_t i = 0; i < cross.from->size(); ++i) {
        for (size_t j = 0; j < cross.to->size(); ++j) {
          const Edge edge{(*cross.from)[i], (*cross.to)[j], cross.messages, cross.share};
          if (edge.from != edge.to && !(cross.off_diagonal && i == j)) add(round, edge);
        }
      }
    }
  }
  return traffic;
}

Traffic traffic_of(const std::vector<Plan>& plans) {
  Traffic traffic;
  for (const Plan& plan : plans) {
    for (const Op& op : plan.ops) {
      if (op.kind != OpKind::kSend) continue;
      auto& [messages, bytes] = traffic[{plan.rank, op.peer}];
      ++messages;
      const auto total = std::accumulate(plan.part_weights.begin(), plan.part_weights.end(), 0.0);
      bytes += plan.part_weights.empty() ? 1 : plan.part_weights[op.length_of.index] / total;
    }
  }
  return traffic;
}

// What the cost model reads is what the Plans do.
TEST_P(GeneratorTest, ItsRoundsAreWhatItsPlansSend) {
  for_each_request(generator(), [&](const ScheduleRequest& request) {
    const Schedule schedule = generator().generate(request);
    const Traffic rounds = traffic_of(schedule);
    const Traffic plans = traffic_of(schedule.project_all());
    for (const auto& [edge, load] : plans) {
      SCOPED_TRACE(std::to_string(edge.first) + " -> " + std::to_string(edge.second));
      ASSERT_TRUE(rounds.contains(edge));
      ASSERT_EQ(rounds.at(edge).first, load.first);
      ASSERT_NEAR(rounds.at(edge).second, load.second, 1e-9);
    }
    ASSERT_EQ(rounds.size(), plans.size());
  });
}

std::vector<size_t> all_generators() {
  std::vector<size_t> indices(generators().size());
  std::iota(indices.begin(), indices.end(), size_t{0});
  return indices;
}

std::string test_name(const testing::TestParamInfo<size_t>& param) {
  const Generator& generator = generators()[param.param];
  return std::string(to_string(generator.collective)) + "_by_" + generator.name;
}

INSTANTIATE_TEST_SUITE_P(All, GeneratorTest, testing::ValuesIn(all_generators()), test_name);

TEST(Generators, ServeAsManyRanksAsTheySay) {
  for (const int n : {1024, 2049, 2050, 4096, 8192}) {
    for (const Generator& generator : generators()) {
      ScheduleRequest request{generator.collective, n, is_rooted(generator.collective) ? 0 : -1};
      if (!generator.applies(request)) continue;
      if (generator.parameters != nullptr) request.parameter = generator.parameters(request)[0];
      const Schedule schedule = generator.generate(request);
      for (const int rank : {0, n / 2, n - 1}) {
        EXPECT_NO_THROW(schedule.project(rank))
            << generator.name << " " << to_string(generator.collective) << " by " << n;
      }
    }
  }
}

TEST(Generators, OfferEveryCollectiveToEveryGroup) {
  for (const auto op : {Collective::kAllReduce, Collective::kReduce, Collective::kBroadcast,
                        Collective::kAllGather, Collective::kReduceScatter, Collective::kAllToAll,
                        Collective::kGather, Collective::kScatter, Collective::kBarrier}) {
    for (int n : {1, 2, 17, 1000}) {
      EXPECT_TRUE(std::ranges::any_of(generators(),
                                      [&](const Generator& g) {
                                        return g.applies({op, 0, n, 0});
                                      }))
          << to_string(op) << " for " << n;
    }
  }
}

TEST(Generators, OfferOneRoundingForEveryReduction) {
  for (const auto op : {Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter}) {
    EXPECT_TRUE(std::ranges::any_of(generators(), [&](const Generator& g) {
      return g.rounds_once && g.applies({op, 0, 1000, 0});
    })) << to_string(op);
  }
}

TEST(Generators, HaveOneEntryForANameAndACollective) {
  std::map<std::pair<std::string, Collective>, int> entries;
  for (const Generator& generator : generators()) {
    EXPECT_EQ(++entries[std::make_pair(generator.name, generator.collective)], 1)
        << generator.name << ' ' << to_string(generator.collective);
  }
}

}  // namespace
}  // namespace q7x2
