// Parts as long as their owners' links and processors allow: proved by the checker, timed by the
// simulator.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "fabric/rate_changes.h"
#include "plan/algorithms/generators.h"
#include "plan/check/checker.h"
#include "plan/choose/planner.h"
#include "plan/cost/simulator.h"
#include "planning.h"
#include "reference_run.h"

namespace q7x2 {
namespace {

using test::kGigabit;
using test::kMiB;

/// The last host's link has `factor` of the rate of the others.
Fabric one_slow(int hosts, int ranks_per_host, double factor) {
  Fabric fabric = Fabric::uniform(hosts, ranks_per_host, kGigabit);
  Fabric::Host& slow = fabric.hosts.back();
  slow.egress *= factor;
  slow.ingress *= factor;
  return fabric;
}

/// All links have a rate, and the processor of the last host has `factor` of the others' speed.
Fabric slow_processor(int hosts, int ranks_per_host, double rate, double factor) {
  const Fabric fabric = Fabric::uniform(hosts, ranks_per_host, rate);
  const auto thousandths = static_cast<int64_t>(1000 * factor);
  return with_rate_changes(fabric, {{{hosts - 1, hosts - 1}, thousandths}});
}

std::optional<Schedule> shares(const Fabric& fabric) {
  for (const Generator& generator : generators()) {
    const ScheduleRequest request{Collective::kAllReduce, fabric.world_size(), -1, &fabric};
    if (generator.name == "shares" && generator.applies(request)) {
      return generator.generate(request);
    }
  }
  return std::nullopt;
}

double seconds_of(const std::string& algorithm, const Fabric& fabric, size_t bytes) {
  Planner planner(0, std::make_shared<const Fabric>(fabric), algorithm);
  return planner.choose({Collective::kAllReduce, bytes}).seconds;
}

TEST(Shares, PassTheCheckerAndAddUp) {
  for (const int hosts : {4, 8, 64}) {
    for (const double factor : {0.2, 0.5, 0.8}) {
      SCOPED_TRACE(std::to_string(hosts) + " hosts, factor " + std::to_string(factor));
      const auto schedule = shares(one_slow(hosts, 1, factor));
      ASSERT_TRUE(schedule);
      const std::vector<Plan> plans = schedule->project_all();
      check_plans(plans);
      if (hosts < 64) run_and_compare(plans, 1000, 256);
    }
  }
}

TEST(Shares, AHostWithSeveralRanksMayBeSlow) {
  const auto schedule = shares(one_slow(4, 3, 0.5));
  ASSERT_TRUE(schedule);
  check_plans(schedule->project_all());
  run_and_compare(schedule->project_all(), 1000, 256);
}

TEST(Shares, ASlowHostOwnsLessTheSlowerItIs) {
  const auto share_of_last = [](double factor) {
    const auto schedule = shares(one_slow(8, 1, factor));
    const std::vector<uint32_t>& weights = schedule->part_weights();
    if (weights.size() < 8) return 0.0;
    return weights.back() / std::accumulate(weights.begin(), weights.end(), 0.0);
  };
  EXPECT_EQ(share_of_last(0.2), 0);
  EXPECT_GT(share_of_last(0.8), 0);
  EXPECT_LT(share_of_last(0.8), 1.0 / 8);
}

TEST(Shares, ThereAreNoneWhereHostsAreAlike) {
  EXPECT_FALSE(shares(Fabric::uniform(8, 1, kGigabit)));
  EXPECT_FALSE(shares(one_slow(8, 1, 0.95)));
  EXPECT_FALSE(shares(one_slow(2, 1, 0.2))) << "each of two hosts sends and receives all anyway";
}

// What the slow link must carry is the bound: its host's contribution, and the result.
TEST(Shares, TakeWhatTheSlowLinkAllows) {
  constexpr double kFactor = 0.2;
  constexpr size_t kBytes = 64 * kMiB;
  for (const int hosts : {4, 8, 64}) {
    SCOPED_TRACE(hosts);
    const Fabric fabric = one_slow(hosts, 1, kFactor);
    const double bound = kBytes / (kFactor * kGigabit);
    const double seconds = seconds_of("shares", fabric, kBytes);
    EXPECT_GT(seconds, 0.99 * bound);
    EXPECT_LT(seconds, 1.1 * bound);
    EXPECT_LT(seconds, 0.8 * seconds_of("sra", fabric, kBytes));
    EXPECT_LT(seconds, 0.8 * seconds_of("ring", fabric, kBytes));
  }
}

// Sums of short floats are to be rounded once; of what does so, this is the best.
TEST(Shares, AreChosenWhereTheyWin) {
  CallShape shape{Collective::kAllReduce, 64 * kMiB};
  shape.wide_accumulation = true;
  for (const int hosts : {4, 8}) {
    EXPECT_EQ(test::algorithm(std::make_shared<const Fabric>(one_slow(hosts, 1, 0.6)), shape),
              "shares");
    EXPECT_NE(test::algorithm(test::network(hosts), shape), "shares");
  }
}

/// What of the data the last rank adds up, as a share of what the first one does.
double work_of_last(const std::vector<Plan>& plans) {
  const auto work = [](const Plan& plan) {
    double sum = 0;
    for (const Op& op : plan.ops) {
      if (op.kind == OpKind::kReduce) sum += plan.part_weights[op.length_of.index] * op.num_sources;
    }
    return sum;
  };
  return work(plans.back()) / work(plans.front());
}

// By the simulator, which counts what each core adds up. In microseconds, of 64 MiB.
double simulated(const std::string& algorithm, const Fabric& fabric) {
  const Choice choice = Planner(0, std::make_shared<const Fabric>(fabric), algorithm)
                            .choose({Collective::kAllReduce, 64 * kMiB});
  std::vector<Plan> plans;
  for (int rank = 0; rank < fabric.world_size(); ++rank) {
    Planner planner(rank, std::make_shared<const Fabric>(fabric), algorithm);
    plans.push_back(*planner.choose({Collective::kAllReduce, 64 * kMiB}).plan);
  }
  return 1e6 * Simulator(plans, fabric).run({64 * kMiB, choice.slice_bytes, choice.window}).seconds;
}

TEST(Shares, ASlowProcessorAddsUpLess) {
  for (const int ranks_per_host : {1, 2}) {
    SCOPED_TRACE(ranks_per_host);
    const double rate = 200 * kGigabit * ranks_per_host;
    const Fabric fabric = slow_processor(8, ranks_per_host, rate, 0.25);
    const auto schedule = shares(fabric);
    ASSERT_TRUE(schedule);
    const std::vector<Plan> plans = schedule->project_all();
    check_plans(plans);
    run_and_compare(plans, 1000, 256);
    EXPECT_LT(work_of_last(plans), 0.4);
  }
}

// A quarter of the speed on links of 200 Gbit/s; a twentieth, as by a quota, on 25 Gbit/s.
TEST(Shares, AreFasterWhereAProcessorIsSlowAndLinksAreFast) {
  for (const auto& [gigabits, factor] : {std::pair(200, 0.25), std::pair(25, 0.05)}) {
    SCOPED_TRACE(gigabits);
    const Fabric fabric = slow_processor(8, 1, gigabits * kGigabit, factor);
    const double seconds = simulated("shares", fabric);
    EXPECT_LT(seconds, 0.8 * simulated("sra", fabric));
    EXPECT_LT(seconds, 0.8 * simulated("ring", fabric));
    CallShape shape{Collective::kAllReduce, 64 * kMiB};
    EXPECT_EQ(test::algorithm(std::make_shared<const Fabric>(fabric), shape), "shares");
  }
}

// There a host waits for its link, not for its processor.
TEST(Shares, AProcessorDoesNotMatterOnSlowLinks) {
  EXPECT_FALSE(shares(slow_processor(8, 1, kGigabit, 0.25)));
  EXPECT_FALSE(shares(slow_processor(8, 1, 25 * kGigabit, 0.25)));
}

}  // namespace
}  // namespace q7x2
