// Ranks that stand for all: that a Schedule's turn is one, and that the figures are those of all
// ranks.
#include "plan/cost/symmetry.h"

#include <optional>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "level.h"
#include "plan/algorithms/generators.h"
#include "plan/cost/simulator.h"

namespace q7x2 {
namespace {

constexpr double kRate = 125e6;

Fabric network(int hosts, int racks, int ranks_of_host = 1, int cores = 8) {
  Fabric fabric = Fabric::uniform(hosts, ranks_of_host, kRate);
  const double cable = racks > 1 ? hosts * kRate / racks / 2 : 0;
  fabric.racks.assign(static_cast<size_t>(racks),
                      Fabric::Rack{.name = "", .up = cable, .down = cable});
  for (int host = 0; host < hosts; ++host) {
    fabric.hosts[static_cast<size_t>(host)].rack = host * racks / hosts;
    fabric.hosts[static_cast<size_t>(host)].cores = cores;
  }
  return fabric;
}

/// All Schedules that say how they may be turned.
std::vector<Schedule> turning_schedules(const Fabric& fabric) {
  std::vector<Schedule> schedules;
  for (const Generator& generator : generators()) {
    ScheduleRequest request{generator.collective, fabric.world_size(),
                            is_rooted(generator.collective) ? 0 : -1, &fabric};
    if (!generator.applies(request)) continue;
    std::vector<int> parameters{0};
    if (generator.parameters != nullptr) parameters = generator.parameters(request);
    for (const int parameter : parameters) {
      request.parameter = parameter;
      Schedule schedule = generator.generate(request);
      if (schedule.turn().ranks > 0) schedules.push_back(std::move(schedule));
    }
  }
  return schedules;
}

/// The Plan of `rank`, and the one that it becomes if all ranks are turned.
void expect_turned(const std::vector<Plan>& plans, size_t rank, Schedule::Turn turn) {
  const Plan& plan = plans[rank];
  const int n = plan.world_size;
  const auto turned_by = [&](int at) {
    return turn.flips ? at ^ turn.ranks : (at + turn.ranks) % n;
  };
  const Plan& turned = plans[static_cast<size_t>(turned_by(static_cast<int>(rank)))];
  ASSERT_EQ(plan.ops.size(), turned.ops.size());
  ASSERT_EQ(plan.successors, turned.successors);
  for (size_t i = 0; i < plan.ops.size(); ++i) {
    const Op& op = plan.ops[i];
    const Op& other = turned.ops[i];
    ASSERT_EQ(op.kind, other.kind);
    ASSERT_EQ(op.stage, other.stage);
    ASSERT_EQ(op.num_sources, other.num_sources);
    ASSERT_EQ(op.num_dependencies, other.num_dependencies);
    ASSERT_EQ(op.first_successor, other.first_successor);
    ASSERT_EQ(op.destination.space, other.destination.space);
    ASSERT_EQ(op.takes_residual, other.takes_residual);
    if (op.peer < 0) continue;
    ASSERT_EQ(turned_by(op.peer), other.peer);
    const int part = op.message % n;
    const int message = turn.messages_of_parts ? op.message - part + turned_by(part) : op.message;
    ASSERT_EQ(message, other.message);
  }
}

/// The Schedules, each turned by the least turn. `step`: every so many ranks are looked at.
size_t turn_all(const Fabric& fabric, const std::vector<Schedule>& schedules, size_t step = 1) {
  for (const Schedule& schedule : schedules) {
    SCOPED_TRACE(schedule.algorithm() + " " + to_string(schedule.collective()) + ", " +
                 std::to_string(fabric.world_size()) + " ranks");
    const std::vector<Plan> plans = schedule.project_all();
    // All flips are made of those of one bit.
    Schedule::Turn turn = schedule.turn();
    do {
      for (size_t rank = 0; rank < plans.size(); rank += step) expect_turned(plans, rank, turn);
      turn.ranks *= 2;
    } while (turn.flips && turn.ranks < fabric.world_size());
    for (const std::vector<uint32_t>& weights = schedule.part_weights();
         const uint32_t weight : weights) {
      EXPECT_EQ(weight, weights[0]);
    }
  }
  return schedules.size();
}

/// Schedules that flip the bits of ranks: there are none for fewer.
constexpr int kFlippedRanks = 512;

std::vector<Schedule> flipping_schedules(const Fabric& fabric) {
  std::vector<Schedule> schedules;
  for (const Generator& generator : generators()) {
    if (generator.name != "halving_doubling") continue;
    const ScheduleRequest request{generator.collective, fabric.world_size(), -1, &fabric};
    schedules.push_back(generator.generate(request));
    EXPECT_TRUE(schedules.back().turn().flips);
  }
  return schedules;
}

TEST(Symmetry, ATurnMakesTheSameSchedule) {
  size_t turned = 0;
  for (const int ranks : {2, 3, 5, 8, 12, 16}) {
    for (const Fabric& fabric :
         {network(ranks, 1), network(ranks, ranks % 2 == 0 ? 2 : 1), network(1, 1, ranks)}) {
      turned += turn_all(fabric, turning_schedules(fabric));
    }
  }
  EXPECT_GT(turned, 100U);
}

TEST(Symmetry, AFlipMakesTheSameSchedule) {
  const Fabric fabric = network(kFlippedRanks, 1);
  EXPECT_EQ(turn_all(fabric, flipping_schedules(fabric), 73), 3U);
}

void expect_equal(const Prediction& some, const Prediction& all) {
  EXPECT_EQ(some.seconds, all.seconds);
  EXPECT_EQ(some.seconds_after_pause, all.seconds_after_pause);
  EXPECT_EQ(some.first_slice_seconds, all.first_slice_seconds);
  EXPECT_EQ(some.bottleneck, all.bottleneck);
  ASSERT_EQ(some.loads.size(), all.loads.size());
  for (size_t i = 0; i < all.loads.size(); ++i) {
    EXPECT_EQ(some.loads[i].name, all.loads[i].name);
    EXPECT_EQ(some.loads[i].bytes, all.loads[i].bytes);
    EXPECT_DOUBLE_EQ(some.loads[i].busy, all.loads[i].busy);
  }
}

/// The few ranks of each Schedule against all ranks, with the same order of what happens at one
/// time. How many predictions were compared.
int compare_few_with_all(const Fabric& fabric, const std::vector<SimulatedCall>& calls,
                         const std::vector<Schedule>& schedules) {
  const Site site(fabric);
  int compared = 0;
  for (const Schedule& schedule : schedules) {
    const Schedule::Turn turn = schedule.turn();
    const auto symmetry = Symmetry::find(site, turn);
    if (!symmetry) continue;
    // A turn by all ranks: each stands for itself.
    const auto none =
        Symmetry::find(site, {fabric.world_size(), turn.messages_of_parts, turn.flips});
    const std::vector<Plan> all = schedule.project_all();
    const Simulator simulator(all, fabric, CodingCost{}, none.value());
    const Simulator few(std::span<const Plan>(all).first(symmetry->num_ranks()), fabric,
                        CodingCost{}, *symmetry);
    for (const SimulatedCall& call : calls) {
      SCOPED_TRACE(schedule.algorithm() + " " + to_string(schedule.collective()) + ", " +
                   std::to_string(fabric.hosts.size()) + " hosts, " + std::to_string(call.bytes) +
                   " bytes");
      const std::optional<Prediction> prediction = few.run_symmetric(call);
      if (!prediction) continue;
      expect_equal(*prediction, simulator.run_symmetric(call).value());
      ++compared;
    }
  }
  return compared;
}

TEST(Symmetry, FewRanksTakeAsLongAsAll) {
  int compared = 0;
  for (const Fabric& fabric :
       {network(16, 1), network(12, 1), network(16, 4), network(8, 2), network(8, 1, 2),
        network(4, 2, 4), network(4, 1, 4, 2), network(31, 1)}) {
    compared += compare_few_with_all(fabric,
                                     {{10, 64, 1},
                                      {5000, 8192, 1},
                                      {16 * 12 * 31 * 4096, 16 * 12 * 31 * 512, 3},
                                      {16 * 12 * 31 * 100'000, 16 * 12 * 31 * 512, 4, 1}},
                                     turning_schedules(fabric));
  }
  EXPECT_GT(compared, 100);
}

/// Racks and hosts of one size with random rates, delays and cores.
Fabric even_network(std::mt19937& random) {
  const auto between = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  const int racks = between(1, 6);
  const int hosts = racks * between(2, 8);
  Fabric fabric = network(hosts, racks, between(1, 2), between(1, 4));
  const double cable = kRate * hosts / racks / between(1, 8);
  const double alpha = between(0, 3) * 20e-6;
  if (racks > 1) {
    fabric.racks.assign(static_cast<size_t>(racks),
                        {.name = "", .up = cable, .down = cable, .alpha = alpha});
  }
  fabric.network.alpha = between(1, 100) * 1e-6;
  fabric.burst = between(0, 1) * 131072.0;
  return fabric;
}

// Ties are where it could fail: racks that do the same meet at the same times at one cable.
TEST(Symmetry, FewRanksTakeAsLongAsAllOnRandomNetworks) {
  const unsigned seed = std::random_device()();
  std::mt19937 random(seed);
  int compared = 0;
  for (int network = 0; network < test::at_level(20, 300); ++network) {
    SCOPED_TRACE("network " + std::to_string(network) + ", seed " + std::to_string(seed));
    const Fabric fabric = even_network(random);
    const auto parts = static_cast<size_t>(fabric.world_size());
    compared += compare_few_with_all(fabric,
                                     {{parts << 16, parts << 10, 4, 1},
                                      {parts << 20, parts << 14, 4},
                                      {parts << 20, parts << 17, 4, 1},
                                      {.bytes = parts << 20,
                                       .slice_bytes = parts << 16,
                                       .window = 4,
                                       .max_slices = 2,
                                       .after_silence = true}},
                                     turning_schedules(fabric));
  }
  EXPECT_GT(compared, 100);
}

TEST(Symmetry, FewRanksThatFlipTakeAsLongAsAll) {
  const Fabric fabric = network(kFlippedRanks, 4);
  const std::vector<SimulatedCall> calls = {{kFlippedRanks << 11, kFlippedRanks << 11, 1}};
  EXPECT_EQ(compare_few_with_all(fabric, calls, flipping_schedules(fabric)), 3);
}

TEST(Symmetry, OneRankStandsForAllOnASwitch) {
  const Fabric fabric = network(64, 1);
  const Site site(fabric);
  for (const Schedule& schedule : turning_schedules(fabric)) {
    const auto symmetry = Symmetry::find(site, schedule.turn());
    ASSERT_TRUE(symmetry);
    EXPECT_EQ(symmetry->num_ranks(), static_cast<size_t>(schedule.turn().ranks));
  }
  const Fabric racks = network(64, 4);
  EXPECT_EQ(Symmetry::find(Site(racks), {1})->num_ranks(), 16U) << "the hosts of one rack";
  const Fabric hosts = network(16, 1, 4);
  EXPECT_EQ(Symmetry::find(Site(hosts), {1})->num_ranks(), 4U) << "the ranks of one host";
}

TEST(Symmetry, WhatIsUnevenHasNone) {
  const auto has_one = [](const Fabric& fabric) {
    return Symmetry::find(Site(fabric), {1}).has_value();
  };
  const Fabric even = network(8, 1);
  EXPECT_TRUE(has_one(even));
  EXPECT_FALSE(Symmetry::find(Site(even), {}));
  Fabric fabric = even;
  fabric.hosts[3].egress /= 2;
  EXPECT_FALSE(has_one(fabric));
  fabric = network(8, 2);
  EXPECT_TRUE(has_one(fabric));
  fabric.racks[1].alpha = 1e-5;
  EXPECT_FALSE(has_one(fabric));
  fabric = even;
  fabric.hosts[3].cores = 2;
  EXPECT_FALSE(has_one(fabric));
  fabric = even;
  fabric.hosts[3].rates = {{"cpu", 0, 1e7, {}}};
  EXPECT_FALSE(has_one(fabric));
  fabric = even;
  fabric.pairs = {{.from = 0, .to = 2, .alpha = 1e-3, .solo = kRate / 4}};
  EXPECT_FALSE(has_one(fabric));
  fabric = even;
  fabric.links = {{.a = 4, .b = 5, .rate = kRate, .alpha = 1e-5}};
  EXPECT_FALSE(has_one(fabric));
  fabric = network(8, 2);
  fabric.racks[1].up /= 2;
  EXPECT_FALSE(has_one(fabric));
  fabric = network(8, 2);
  fabric.hosts[0].rack = 1;
  EXPECT_FALSE(has_one(fabric));
  fabric = even;
  for (Fabric::Host& host : fabric.hosts) host.hardware.machine = "all on one";
  EXPECT_FALSE(has_one(fabric)) << "a turn leaves the machine where it is";
}

}  // namespace
}  // namespace q7x2
