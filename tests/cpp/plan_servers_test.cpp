// Servers in a Fabric, and Schedules in which they add up what ranks send.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "checked_plans.h"
#include "fabric/catalogue.h"
#include "plan/check/checker.h"
#include "plan/cost/cost_model.h"
#include "plan/cost/loads.h"
#include "plan/cost/simulator.h"
#include "plan/files/plan_json.h"
#include "planning.h"
#include "random_fabric.h"
#include "reference_run.h"

namespace q7x2::test {
namespace {

constexpr double kMegabit = 1e6 / 8;

Fabric with_servers(int hosts, double host_rate, const std::vector<double>& rates) {
  Fabric fabric = Fabric::uniform(hosts, 1, host_rate);
  for (const double rate : rates) {
    fabric.servers.push_back({.name = "s" + std::to_string(fabric.servers.size()),
                              .key = {},
                              .egress = rate,
                              .ingress = rate});
  }
  return fabric;
}

Schedule made_by(const std::string& name, const Fabric& fabric, int parameter, Collective op,
                 int root) {
  for (const Generator& generator : generators()) {
    if (generator.name != name || generator.collective != op) continue;
    return generator.generate({op, fabric.world_size(), root, &fabric, parameter});
  }
  throw Error(ErrorCode::kInternal, "no generator " + name);
}

Schedule served(const Fabric& fabric, int servers, Collective op = Collective::kAllReduce,
                int root = -1) {
  return made_by("servers", fabric, servers, op, root);
}

Schedule served_by_racks(const Fabric& fabric, int servers, Collective op = Collective::kAllReduce,
                         int root = -1) {
  return made_by("rack_servers", fabric, servers, op, root);
}

/// Racks of `hosts` hosts and `servers` servers each, behind cables of `up` bytes a second.
Fabric racks_with_servers(int racks, int hosts, int servers, double up) {
  Fabric fabric = with_servers(racks * hosts, 100 * kMegabit,
                               std::vector<double>(static_cast<size_t>(racks * servers), kGigabit));
  fabric.racks.assign(static_cast<size_t>(racks), {.name = "", .up = up, .down = up});
  for (size_t i = 0; i < fabric.hosts.size(); ++i) {
    fabric.hosts[i].rack = static_cast<int>(i) / hosts;
  }
  for (size_t i = 0; i < fabric.servers.size(); ++i) {
    fabric.servers[i].rack = static_cast<int>(i) / servers;
  }
  fabric.validate();
  return fabric;
}

double seconds_of(const Fabric& fabric, size_t bytes, const std::string& algorithms = "") {
  Planner planner(0, std::make_shared<Fabric>(fabric), algorithms);
  return planner.choose({Collective::kAllReduce, bytes}).seconds;
}

TEST(Servers, ARankSendsAndReceivesTheBufferOnce) {
  const Fabric fabric = with_servers(5, kGigabit, {kGigabit, kGigabit, kGigabit});
  for (const int servers : {1, 2, 3}) {
    const Loads loads = measure_loads(served(fabric, servers).project_all(), nullptr);
    ASSERT_EQ(loads.sent.size(), 8U);
    for (size_t member = 0; member < 8; ++member) {
      const bool is_used = member < 5 + static_cast<size_t>(servers);
      const double expected = member < 5 ? 1 : is_used ? 5.0 / servers : 0;
      EXPECT_NEAR(loads.sent[member], expected, 1e-9) << "member " << member;
      EXPECT_NEAR(loads.received[member], expected, 1e-9) << "member " << member;
    }
  }
}

TEST(Servers, OnlyTheRootOfAReduceHearsTheSum) {
  const Fabric fabric = with_servers(4, kGigabit, {kGigabit, kGigabit});
  const std::vector<Plan> plans = served(fabric, 2, Collective::kReduce, 2).project_all();
  check_plans(plans);
  run_and_compare(plans, 37, 11);
  EXPECT_EQ(measure_loads(plans, nullptr).received, (std::vector<double>{0, 0, 1, 0, 2, 2}));
}

TEST(Servers, SharesFollowTheRates) {
  const Fabric fabric = with_servers(3, kGigabit, {kGigabit, 2 * kGigabit, kGigabit / 100, 0});
  EXPECT_EQ(served(fabric, 4).part_weights(), (std::vector<uint32_t>{1, 1, 1, 16}));
  Fabric known = fabric;
  known.servers.pop_back();
  EXPECT_EQ(served(known, 3).part_weights(), (std::vector<uint32_t>{8, 16, 1}));
  // The fastest ones are taken: servers 1 and 0, in the order of their numbers.
  EXPECT_EQ(served(known, 2).part_weights(), (std::vector<uint32_t>{8, 16}));
  EXPECT_TRUE(served(known, 2).project(5).ops.empty());
  // Two on one host share its NIC.
  known.servers[1].key = known.servers[2].key = "one host";
  known.servers[2] = known.servers[1];
  EXPECT_EQ(served(known, 3).part_weights(), (std::vector<uint32_t>{1, 1, 1}));
}

TEST(Servers, AServerOnAHostOfRanksUsesItsMemoryAndItsNic) {
  Fabric fabric = with_servers(3, 100 * kMegabit, {kGigabit});
  fabric.hosts[1].key = fabric.servers[0].key = "h1";
  const Fabric all = fabric.with_servers();
  EXPECT_EQ(all.hosts.size(), 3U);
  EXPECT_TRUE(all.same_host(1, 3));
  EXPECT_TRUE(all.servers.empty());
  const std::vector<Plan> plans = served(fabric, 1).project_all();
  const Prediction run = Simulator(plans, fabric).run({kMiB, kMiB, 1});
  const auto bytes = [&](const std::string& name) {
    const auto load = std::ranges::find(run.loads, name, &Prediction::Load::name);
    return load == run.loads.end() ? 0 : load->bytes;
  };
  EXPECT_NEAR(bytes("ingress h1"), 2 * kMiB, 1);
  EXPECT_NEAR(bytes("ingress h0"), kMiB, 1);
}

// A server that is ten times as fast as the hosts is enough for eight of them, not for sixteen.
TEST(Servers, AreChosenWhereTheyAreFaster) {
  for (const int hosts : {8, 16}) {
    const Fabric without = Fabric::uniform(hosts, 1, 100 * kMegabit);
    const Fabric fabric = with_servers(hosts, 100 * kMegabit, {kGigabit, kGigabit});
    Planner planner(0, std::make_shared<Fabric>(fabric), "");
    const Choice choice = planner.choose({Collective::kAllReduce, 16 * kMiB});
    EXPECT_EQ(choice.plan->algorithm, hosts == 8 ? "servers:1" : "servers:2");
    EXPECT_EQ(choice.plan->helpers, 2);
    EXPECT_GT(seconds_of(without, 16 * kMiB), 1.6 * choice.seconds) << hosts;
  }
}

TEST(Servers, AreNotChosenWhereTheyAreSlower) {
  for (const size_t bytes : {size_t{8}, 64 * kKiB, 16 * kMiB}) {
    const Fabric slow = with_servers(8, kGigabit, {kGigabit});
    Planner planner(0, std::make_shared<Fabric>(slow), "");
    const Choice choice = planner.choose({Collective::kAllReduce, bytes});
    EXPECT_EQ(choice.plan->helpers, 0) << choice.plan->algorithm << " for " << bytes;
    EXPECT_LE(choice.seconds, seconds_of(slow, bytes, "servers")) << bytes;
  }
}

TEST(Servers, WhatTheyDoNotServeTakesAsLongAsWithoutThem) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    Fabric fabric = random_fabric(6, seed);
    fabric.servers.assign(2, {.name = "s", .key = {}, .egress = 1e6, .ingress = 1e6});
    Fabric without = fabric;
    without.servers.clear();
    EXPECT_EQ(seconds_of(fabric, kMiB, "ring"), seconds_of(without, kMiB, "ring")) << seed;
    EXPECT_EQ(seconds_of(fabric, kMiB, "sra"), seconds_of(without, kMiB, "sra")) << seed;
  }
}

TEST(Servers, ServeNoCallsWithACodec) {
  const auto fabric =
      std::make_shared<Fabric>(with_servers(8, 100 * kMegabit, {kGigabit, kGigabit}));
  CallShape shape{Collective::kAllReduce, 16 * kMiB};
  shape.codec = "some";
  shape.dtype = DType::kFloat32;
  shape.coding = [](const Fabric&) { return CodingCost{}; };
  for (const Candidate& each : Planner(0, fabric, "").explain(shape)) {
    EXPECT_NE(each.algorithm.substr(0, 7), "servers");
  }
}

TEST(Servers, WithoutServersNothingIsOffered) {
  Planner planner(0, network(4), "");
  for (const Candidate& each : planner.explain({Collective::kAllReduce, kMiB})) {
    EXPECT_NE(each.algorithm.substr(0, 7), "servers");
  }
}

TEST(Servers, TheModelIsNearTheSimulator) {
  for (const double rate : {100 * kMegabit, kGigabit, 10 * kGigabit}) {
    const Fabric fabric = with_servers(8, 100 * kMegabit, {rate, rate});
    const Site site(fabric);
    for (const size_t bytes : {size_t{8}, 64 * kKiB, 16 * kMiB}) {
      const Schedule schedule = served(fabric, 2);
      const std::vector<Plan> plans = schedule.project_all();
      const SimulatedCall call{bytes, std::min(bytes, 64 * kKiB), 4};
      const double simulated = Simulator(plans, fabric).run(call).seconds;
      const double estimated = CostModel(schedule, site).seconds(call);
      EXPECT_GT(estimated, simulated * 0.5) << rate << ", " << bytes << " bytes";
      EXPECT_LT(estimated, simulated * 2.2) << rate << ", " << bytes << " bytes";
    }
  }
}

TEST(Servers, ASampleOfAThousandRanksIsProven) {
  const Fabric fabric = with_servers(1000, 100 * kMegabit, {kGigabit, kGigabit});
  const std::vector<int> members{0, 501, 999, 1000};
  EXPECT_EQ(check_sample(served(fabric, 2), members), 3);
}

TEST(Servers, APlanThatNamesAHelpersBufferIsRefused) {
  const Fabric fabric = with_servers(3, kGigabit, {kGigabit});
  Schedule schedule = served(fabric, 1);
  const std::vector<Plan> good = schedule.project_all();
  std::vector<Plan> plans = good;
  plans[3].sources[0] = Block::input(0);
  EXPECT_COMPLAINT(plans, "names a buffer, but helpers have no buffers");
  plans = good;
  plans.pop_back();
  EXPECT_COMPLAINT(plans, "is made for 4 ranks, checked with 3");
  plans = good;
  plans[1].helpers = 0;
  EXPECT_COMPLAINT(plans, "is made for 3 ranks, checked with 4");
  plans = good;
  std::swap(plans[3].sources[0], plans[3].sources[1]);
  EXPECT_COMPLAINT(plans, "is not folded in rank order");
  plans = good;
  plans[3].sources[1] = plans[3].sources[0];
  EXPECT_COMPLAINT(plans, "counts the contribution of rank 0 twice");
}

TEST(Servers, OnlyFlatCollectivesHaveHelpers) {
  Schedule schedule({Collective::kAllGather, 2}, "handmade");
  schedule.set_helpers(1);
  schedule.set_program([](PlanBuilder&, int) {});
  EXPECT_COMPLAINT(schedule.project_all(), "only flat collectives have helpers");
}

TEST(Servers, AFileHasPlansOfRanksOnly) {
  const Fabric fabric = with_servers(3, kGigabit, {kGigabit});
  EXPECT_THROW(to_json(served(fabric, 1)), Error);
}

TEST(Servers, StayInPartsOfAFabricButNotInAnotherJob) {
  Fabric fabric = with_servers(4, kGigabit, {kGigabit});
  fabric.racks.assign(3, Fabric::Rack{});
  fabric.hosts[3].rack = fabric.servers[0].rack = 2;
  const Fabric part = fabric.subset({3, 0});
  part.validate();
  EXPECT_EQ(part.servers.at(0).rack, 0);
  EXPECT_EQ(part.hosts[0].rack, 0);
  const auto found = placed(fabric, {0, 1}, {"a", "b"}, {"h0", "h1"}, true);
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->servers.empty());
}

// A rank sends the buffer once, and so does a rack, however many ranks it has: 2 B (R-1)/R.
TEST(RackServers, TheSumOfARackLeavesIt) {
  const Fabric fabric = racks_with_servers(3, 4, 2, 100 * kMegabit);
  for (const int servers : {1, 2}) {
    const std::vector<Plan> plans = served_by_racks(fabric, servers).project_all();
    const Loads loads = measure_loads(plans, nullptr);
    for (size_t rank = 0; rank < 12; ++rank) {
      EXPECT_NEAR(loads.sent[rank], 1, 1e-9) << rank;
      EXPECT_NEAR(loads.received[rank], 1, 1e-9) << rank;
    }
    for (size_t server = 0; server < 6; ++server) {
      const double expected = static_cast<int>(server % 2) < servers ? (4 + 4.0 / 3) / servers : 0;
      EXPECT_NEAR(loads.sent[12 + server], expected, 1e-9) << server;
      EXPECT_NEAR(loads.received[12 + server], expected, 1e-9) << server;
    }
    const Prediction run = Simulator(plans, fabric).run({kMiB, kMiB, 1});
    int cables = 0;
    for (const Prediction::Load& load : run.loads) {
      if (!load.name.starts_with("up ") && !load.name.starts_with("down ")) continue;
      ++cables;
      EXPECT_NEAR(load.bytes, kMiB * 4.0 / 3, 100) << load.name;
    }
    EXPECT_EQ(cables, 6);
  }
}

TEST(RackServers, RanksOfARackWithoutServersTalkToTheOthers) {
  Fabric fabric = racks_with_servers(3, 2, 1, 100 * kMegabit);
  fabric.servers.pop_back();
  for (const auto op : {Collective::kAllReduce, Collective::kReduce}) {
    for (int root = 0; root < 6; ++root) {
      const std::vector<Plan> plans =
          served_by_racks(fabric, 1, op, op == Collective::kReduce ? root : -1).project_all();
      check_plans(plans);
      run_and_compare(plans, 37, 11);
    }
  }
}

TEST(RackServers, AreOfferedWhereTwoRacksHaveServers) {
  const auto offers = [](const Fabric& fabric) {
    Planner planner(0, std::make_shared<Fabric>(fabric), "");
    std::vector<std::string> names;
    for (const Candidate& each : planner.explain({Collective::kAllReduce, kMiB})) {
      if (each.algorithm.starts_with("rack_servers")) names.push_back(each.algorithm);
    }
    std::ranges::sort(names);
    return names;
  };
  EXPECT_EQ(offers(racks_with_servers(2, 4, 3, kGigabit)),
            (std::vector<std::string>{"rack_servers:1", "rack_servers:2", "rack_servers:3"}));
  EXPECT_TRUE(offers(racks_with_servers(1, 4, 3, kGigabit)).empty());
  EXPECT_TRUE(offers(racks_with_servers(2, 4, 0, kGigabit)).empty());
}

// Four hosts of a rack send 50 MB/s, but only 12.5 MB/s leave it.
TEST(RackServers, AreChosenWhereCablesOfRacksAreSlow) {
  for (const int racks : {2, 4}) {
    const Fabric fabric = racks_with_servers(racks, 4, 1, 100 * kMegabit);
    Planner planner(0, std::make_shared<Fabric>(fabric), "");
    const Choice choice = planner.choose({Collective::kAllReduce, 16 * kMiB});
    EXPECT_EQ(choice.plan->algorithm, "rack_servers:1");
    EXPECT_LT(choice.seconds, 0.7 * seconds_of(fabric, 16 * kMiB, "servers")) << racks;
  }
}

TEST(RackServers, TheModelIsNearTheSimulator) {
  const Fabric fabric = racks_with_servers(2, 4, 2, 200 * kMegabit);
  const Site site(fabric);
  for (const size_t bytes : {size_t{8}, 64 * kKiB, 16 * kMiB}) {
    const Schedule schedule = served_by_racks(fabric, 2);
    const SimulatedCall call{bytes, std::min(bytes, 64 * kKiB), 4};
    const double simulated = Simulator(schedule.project_all(), fabric).run(call).seconds;
    const double estimated = CostModel(schedule, site).seconds(call);
    EXPECT_GT(estimated, simulated * 0.5) << bytes << " bytes";
    EXPECT_LT(estimated, simulated * 2.2) << bytes << " bytes";
  }
}

TEST(RackServers, ASampleOfAThousandRanksIsProven) {
  const Fabric fabric = racks_with_servers(20, 50, 1, kGigabit);
  const std::vector<int> members{0, 501, 999, 1000, 1019};
  EXPECT_GT(check_sample(served_by_racks(fabric, 1), members), 0);
}

TEST(Servers, MustMakeSense) {
  Fabric fabric = with_servers(2, kGigabit, {kGigabit});
  fabric.servers[0].rack = 1;
  EXPECT_THROW(fabric.validate(), Error);
  fabric.servers[0].rack = 0;
  fabric.servers[0].ingress = -1;
  EXPECT_THROW(fabric.validate(), Error);
}

}  // namespace
}  // namespace q7x2::test
