// The cost model against the Plans that the rounds stand for, and against the simulator.
#include "plan/cost/cost_model.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "fabric/fabric.h"
#include "plan/algorithms/generators.h"
#include "plan/cost/loads.h"
#include "plan/cost/simulator.h"
#include "random_fabric.h"

namespace q7x2 {
namespace {

constexpr size_t kKiB = 1024;

template <typename Visit>
void for_each_schedule(const Fabric& fabric, Visit visit) {
  for (const Generator& generator : generators()) {
    ScheduleRequest request{generator.collective, fabric.world_size(), -1, &fabric};
    if (is_rooted(generator.collective)) request.root = fabric.world_size() / 2;
    if (!generator.applies(request)) continue;
    std::vector<int> parameters{0};
    if (generator.parameters != nullptr) parameters = generator.parameters(request);
    for (const int parameter : parameters) {
      request.parameter = parameter;
      SCOPED_TRACE(std::string(to_string(generator.collective)) + " by " +
                   generator.full_name(parameter));
      visit(generator, generator.generate(request));
    }
  }
}

TEST(CostModel, LoadsResourcesAsThePlansDo) {
  for (int ranks = 2; ranks <= 13; ++ranks) {
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      const Fabric fabric = random_fabric(ranks, seed);
      SCOPED_TRACE(std::to_string(ranks) + " ranks, seed " + std::to_string(seed));
      const Site site(fabric);
      for_each_schedule(fabric, [&](const Generator&, const Schedule& schedule) {
        const Prediction model = CostModel(schedule, site).predict({1000000, 1000000, 1});
        const std::vector<Plan> plans = schedule.project_all();
        const Loads loads = measure_loads(plans, &site.routes);
        for (size_t i = 0; i < loads.resources.size(); ++i) {
          const std::string& name = site.routes.resources()[i].name;
          const auto load = std::ranges::find(model.loads, name, &Prediction::Load::name);
          const double bytes = load == model.loads.end() ? 0 : load->bytes;
          EXPECT_NEAR(bytes, loads.resources[i] * 1e6, 1) << name;
        }
        if (HasFailure()) return;
      });
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(CostModel, AHostsOwnRatesCount) {
  const Fabric fabric = Fabric::uniform(4, 2, 12.5e9);
  for (const bool copies : {true, false}) {
    Fabric slow = fabric;
    slow.hosts[2].rates = {{"cpu", copies ? 5e6 : 0, copies ? 0 : 5e6, {}}};
    const Site site(slow);
    double slowest = 0;
    for_each_schedule(fabric, [&](const Generator& generator, const Schedule& schedule) {
      if (generator.collective != Collective::kAllReduce) return;
      const SimulatedCall call{1024 * kKiB, 256 * kKiB, 4};
      const std::vector<Plan> plans = schedule.project_all();
      const double estimated = CostModel(schedule, site).seconds(call);
      const double simulated = Simulator(plans, slow).run(call).seconds;
      EXPECT_GT(estimated, simulated * 0.5) << (copies ? "copies" : "reduces") << " slowly";
      EXPECT_LT(estimated, simulated * 2.2) << (copies ? "copies" : "reduces") << " slowly";
      slowest = std::max(slowest, estimated);
    });
    EXPECT_GT(slowest, 1024 * kKiB / 5e6) << "the slow host is not seen";
  }
}

TEST(CostModel, TheInterconnectCountsAsInTheSimulator) {
  Fabric fabric = Fabric::one_host_of(8, 8);
  for (int rank = 0; rank < 8; ++rank) fabric.bindings.push_back({rank / 4, std::to_string(rank)});
  fabric.interconnect.rate = 1e9;
  const Site site(fabric);
  const SimulatedCall call{16384 * kKiB, 1024 * kKiB, 4};
  for_each_schedule(fabric, [&](const Generator& generator, const Schedule& schedule) {
    if (generator.collective == Collective::kBarrier) return;
    const std::vector<Plan> plans = schedule.project_all();
    const Prediction simulated = Simulator(plans, fabric).run(call);
    const Prediction estimated = CostModel(schedule, site).predict(call);
    const auto busy = [](const Prediction& prediction) {
      const auto load =
          std::ranges::find(prediction.loads, "interconnect h0", &Prediction::Load::name);
      return load == prediction.loads.end() ? 0 : load->busy;
    };
    EXPECT_NEAR(busy(estimated), busy(simulated), 0.01 * busy(simulated));
    EXPECT_GT(estimated.seconds, simulated.seconds * 0.5);
    EXPECT_LT(estimated.seconds, simulated.seconds * 2.2);
  });
}

TEST(CostModel, ABurstCountsAsInTheSimulator) {
  Fabric fabric = Fabric::uniform(4, 1, 12.5e6);
  fabric.burst = 128 * kKiB;
  const Site site(fabric);
  for (const size_t bytes : {64 * kKiB, 1024 * kKiB}) {
    for_each_schedule(fabric, [&](const Generator& generator, const Schedule& schedule) {
      if (generator.collective == Collective::kBarrier) return;
      const std::vector<Plan> plans = schedule.project_all();
      const SimulatedCall call{bytes, 64 * kKiB, 4};
      const double simulated = Simulator(plans, fabric).run(call).seconds;
      const double estimated = CostModel(schedule, site).seconds(call);
      EXPECT_GT(estimated, simulated * 0.5) << bytes << " bytes";
      EXPECT_LT(estimated, simulated * 2.2) << bytes << " bytes";
    });
  }
}

// By how much the model's order of algorithms may be off: what it puts first is simulated, among
// those that it does not think hopeless.
TEST(CostModel, IsNearTheSimulator) {
  std::vector<double> ratios;
  for (const auto& [name, fabric] : std::vector<std::pair<std::string, Fabric>>{
           {"4 hosts", Fabric::uniform(4, 1, 125e6)},
           {"16 hosts", Fabric::uniform(16, 1, 125e6)},
           {"4 hosts of 4 ranks", Fabric::uniform(4, 4, 125e6)},
           {"a host of 8 ranks", Fabric::one_host_of(8, 8)},
           {"4 ranks on 2 cores", Fabric::one_host_of(4, 2)}}) {
    const Site site(fabric);
    for (const size_t bytes : {size_t{4}, 16 * kKiB, 1024 * kKiB, 16384 * kKiB}) {
      for_each_schedule(fabric, [&](const Generator& generator, const Schedule& schedule) {
        if (generator.collective == Collective::kBarrier) return;
        const std::vector<Plan> plans = schedule.project_all();
        const SimulatedCall call{bytes, std::min<size_t>(bytes, 1024 * kKiB), 4};
        const double simulated = Simulator(plans, fabric).run(call).seconds;
        const double estimated = CostModel(schedule, site).seconds(call);
        EXPECT_GT(estimated, simulated * 0.5) << name << ", " << bytes << " bytes";
        EXPECT_LT(estimated, simulated * 2.2) << name << ", " << bytes << " bytes";
        ratios.push_back(estimated / simulated);
      });
    }
  }
  std::ranges::sort(ratios);
  EXPECT_NEAR(ratios[ratios.size() / 2], 1, 0.05);
  EXPECT_GT(ratios[ratios.size() / 10], 0.85);
  EXPECT_LT(ratios[ratios.size() * 9 / 10], 1.2);
}

}  // namespace
}  // namespace q7x2
