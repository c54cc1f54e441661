// The virtual clock against sums done by hand.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "plan/algorithms/generators.h"
#include "plan/cost/simulator.h"
#include "plan/ir/coding_pass.h"

namespace q7x2 {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr double kRate = 100e6;
constexpr double kAlpha = 50e-6;
constexpr double kOverhead = 5e-6;

Fabric network(int hosts) {
  Fabric fabric = Fabric::uniform(hosts, 1, kRate);
  fabric.network = {kAlpha, kOverhead};
  fabric.reduce_rate = 1e9;
  fabric.copy_rate = 2e9;
  return fabric;
}

Schedule schedule(const std::string& name, Collective collective, const Fabric& fabric,
                  int root = -1) {
  for (const Generator& generator : generators()) {
    if (generator.name != name || generator.collective != collective) continue;
    return generator.generate({collective, fabric.world_size(), root, &fabric});
  }
  throw Error(ErrorCode::kInvalidArgument, "no " + name);
}

std::vector<Plan> plans(const std::string& name, Collective collective, const Fabric& fabric,
                        int root = -1) {
  return schedule(name, collective, fabric, root).project_all();
}

Prediction simulate(const std::string& name, Collective collective, const Fabric& fabric,
                    const SimulatedCall& call, int root = -1) {
  const std::vector<Plan> all = plans(name, collective, fabric, root);
  return Simulator(all, fabric).run(call);
}

const Prediction::Load& load(const Prediction& prediction, const std::string& name) {
  for (const auto& each : prediction.loads) {
    if (each.name == name) return each;
  }
  throw Error(ErrorCode::kInvalidArgument, "nothing passes " + name);
}

TEST(Simulator, AHostsOwnRatesCount) {
  Fabric fabric = network(2);
  const double even = simulate("ring", Collective::kAllReduce, fabric, {kMiB, kMiB, 1}).seconds;
  fabric.hosts[1].rates = {{"cpu", 0, 1e7, {}}};
  const double slow = simulate("ring", Collective::kAllReduce, fabric, {kMiB, kMiB, 1}).seconds;
  // The slow host reduces half of the buffer.
  EXPECT_NEAR(slow - even, kMiB / 2 * (1 / 1e7 - 1 / 1e9), 1e-5);
}

TEST(Simulator, AMeasuredPairCounts) {
  Fabric fabric = network(3);
  fabric.pairs = {{.from = 0, .to = 2, .alpha = 1e-3, .solo = kRate / 4}};
  const Prediction prediction =
      simulate("direct", Collective::kBroadcast, fabric, {1000, 1024, 1}, 0);
  EXPECT_NEAR(load(prediction, "pair h0 -> h2").busy, 4 * 1000 / kRate, 1e-12);
  EXPECT_GT(prediction.seconds, 1e-3 + 4 * 1000 / kRate);
}

TEST(Simulator, AMessageBetweenNumaNodesTakesLonger) {
  Fabric fabric = Fabric::one_host_of(2, 2);
  const double near = simulate("direct", Collective::kBroadcast, fabric, {8, 64, 1}, 0).seconds;
  fabric.bindings = {{0, "0"}, {1, "1"}};
  const double far = simulate("direct", Collective::kBroadcast, fabric, {8, 64, 1}, 0).seconds;
  EXPECT_NEAR(
      far - near,
      fabric.memory.alpha * (fabric.interconnect.alpha_factor - 1) + 8 / fabric.interconnect.rate,
      1e-12);
}

TEST(Simulator, TheInterconnectIsAWireThatNodesShare) {
  Fabric fabric = Fabric::one_host_of(4, 4);
  fabric.bindings = {{0, "0"}, {0, "1"}, {1, "2"}, {1, "3"}};
  fabric.interconnect.rate = 1e9;
  const Prediction prediction =
      simulate("direct", Collective::kBroadcast, fabric, {64 * kMiB, kMiB, 4}, 0);
  // Two of the three receivers are bound to the other node.
  const Prediction::Load& interconnect = load(prediction, "interconnect h0");
  EXPECT_NEAR(interconnect.bytes, 2.0 * 64 * kMiB, 1);
  EXPECT_NEAR(interconnect.busy, 2.0 * 64 * kMiB / 1e9, 1e-6);
  EXPECT_GE(prediction.seconds, interconnect.busy);
  EXPECT_LE(prediction.seconds, 1.05 * interconnect.busy);
  const std::vector<Plan> all = plans("direct", Collective::kBroadcast, fabric, 0);
  EXPECT_NEAR(Simulator(all, fabric).bound({64 * kMiB, kMiB, 4}), interconnect.busy, 1e-6);
}

TEST(Simulator, AfterAPauseABurstPassesAtOnce) {
  Fabric fabric = network(2);
  const SimulatedCall call{64 * 1024, 64 * 1024, 1};
  const double before = simulate("ring", Collective::kAllReduce, fabric, call).seconds;
  fabric.burst = 128 * 1024;
  const Prediction prediction = simulate("ring", Collective::kAllReduce, fabric, call);
  // Both steps together send no more than the burst, so the wires hide their latency. But in a row
  // of calls they get no more than their rate.
  EXPECT_NEAR(prediction.seconds, 64 * 1024 / kRate, 1e-9);
  EXPECT_LT(prediction.seconds, before - kAlpha);
  EXPECT_LT(prediction.seconds_after_pause, prediction.seconds);
  // A long call takes what it takes without a burst.
  const SimulatedCall long_call{64 * kMiB, kMiB, 4};
  const double with = simulate("ring", Collective::kAllReduce, fabric, long_call).seconds;
  fabric.burst = 0;
  const double without = simulate("ring", Collective::kAllReduce, fabric, long_call).seconds;
  EXPECT_NEAR(with / without, 1, 0.01);
}

TEST(Simulator, WhatABurstDoesNotHoldPassesAtTheRate) {
  Fabric fabric = network(2);
  fabric.network = {1e-3, 0};
  fabric.burst = 8000;
  const auto seconds = [&](size_t bytes) {
    return simulate("recursive_doubling", Collective::kAllReduce, fabric, {bytes, bytes, 1})
        .seconds;
  };
  EXPECT_NEAR(seconds(8000), 1e-3 + 8000.0 / fabric.reduce_rate, 1e-9) << "all of it at once";
  EXPECT_NEAR(seconds(8192) - seconds(8000), 192 / kRate + 192 / fabric.reduce_rate, 1e-9)
      << "what the burst does not hold";
}

TEST(Simulator, ASmallMessageTakesAlphaAndItsEnds) {
  const Prediction prediction =
      simulate("direct", Collective::kBroadcast, network(2), {1000, 1024, 1}, 0);
  EXPECT_NEAR(prediction.seconds, kAlpha + 2 * kOverhead + 1000 / kRate, 1e-12);
  EXPECT_DOUBLE_EQ(prediction.first_slice_seconds, prediction.seconds);
  EXPECT_DOUBLE_EQ(load(prediction, "egress h0").bytes, 1000);
  EXPECT_DOUBLE_EQ(load(prediction, "ingress h1").busy, 1000 / kRate);
}

TEST(Simulator, WhatAWindowHoldsPassesAtTheRateOfTheRoute) {
  Fabric fabric = network(2);
  fabric.network = {50e-3, 0};
  const auto seconds = [&](size_t bytes) {
    return simulate("direct", Collective::kBroadcast, fabric, {bytes, bytes, 1}, 0)
        .seconds_after_pause;
  };
  const double without = seconds(kMiB);
  const double long_without = seconds(8 * kMiB);
  constexpr double kWindow = 2.0 * kMiB;
  fabric.pairs = {{.from = 0, .to = 1, .alpha = 50e-3, .window = kWindow}};
  EXPECT_NEAR(seconds(kMiB), without, 1e-9);
  // Four windows: the last one leaves three round trips after the first.
  EXPECT_GT(seconds(8 * kMiB), 1.5 * long_without);
  EXPECT_NEAR(seconds(8 * kMiB), 50e-3 + 3 * 100e-3 + kWindow / kRate, 1e-3);
  EXPECT_NEAR(seconds(3 * kMiB), 50e-3 + 100e-3 + kMiB / kRate, 1e-3);
  // It is the same in slices.
  const SimulatedCall in_slices{8 * kMiB, kMiB / 4, 16};
  EXPECT_NEAR(simulate("direct", Collective::kBroadcast, fabric, in_slices, 0).seconds_after_pause,
              seconds(8 * kMiB), 5e-3);
  // Calls in a row have no window left over from a pause.
  const Prediction in_a_row =
      simulate("direct", Collective::kBroadcast, fabric, {8 * kMiB, 8 * kMiB, 1}, 0);
  EXPECT_NEAR(in_a_row.seconds, 8 * kMiB / (kWindow / 100e-3), 1e-6);
  EXPECT_EQ(in_a_row.loads[static_cast<size_t>(in_a_row.bottleneck)].name, "connection h0 -> h1");
}

TEST(Simulator, ALargeMessageCutsThrough) {
  const Prediction prediction =
      simulate("direct", Collective::kBroadcast, network(2), {kMiB, kMiB, 1}, 0);
  EXPECT_NEAR(prediction.seconds, kAlpha + 2 * kOverhead + kMiB / kRate, 1e-9)
      << "the bytes pass both NICs at the same time";
}

TEST(Simulator, MessagesOfOneHostQueueAtItsNic) {
  const int n = 5;
  const Prediction prediction =
      simulate("direct", Collective::kBroadcast, network(n), {kMiB, kMiB, 1}, 0);
  EXPECT_NEAR(prediction.seconds, (n - 1) * kMiB / kRate, 5e-4);
  EXPECT_GT(prediction.seconds, (n - 1) * kMiB / kRate);
  EXPECT_EQ(prediction.loads[static_cast<size_t>(prediction.bottleneck)].name, "egress h0");
}

TEST(Simulator, TheRingReachesItsBound) {
  const Fabric fabric = network(4);
  const SimulatedCall call{64 * kMiB, kMiB, 4};
  const Prediction prediction = simulate("ring", Collective::kAllReduce, fabric, call);
  const double bound = 2 * 0.75 * 64 * kMiB / kRate;
  EXPECT_GE(prediction.seconds, bound);
  EXPECT_LE(prediction.seconds, 1.05 * bound);
  const std::vector<Plan> all = plans("ring", Collective::kAllReduce, fabric);
  EXPECT_NEAR(Simulator(all, fabric).bound(call), bound, 1e-6 * bound);
  for (int host = 0; host < 4; ++host) {
    EXPECT_NEAR(load(prediction, "egress h" + std::to_string(host)).bytes, 96.0 * kMiB, 1);
  }
}

TEST(Simulator, ASharedUplinkSlowsAllWhoCrossIt) {
  Fabric fabric = network(4);
  fabric.racks = {{"a", kRate, kRate}, {"b", kRate, kRate}};
  fabric.hosts[2].rack = fabric.hosts[3].rack = 1;
  // A ring that was made without knowing the racks, of ranks that are interleaved between them: all
  // four messages of a step cross.
  const std::vector<Plan> all = plans("ring", Collective::kAllReduce, network(4));
  std::swap(fabric.host_of[1], fabric.host_of[2]);
  const Prediction prediction = Simulator(all, fabric).run({64 * kMiB, kMiB, 4});
  const double bound = 2 * 2 * 0.75 * 64 * kMiB / kRate;
  EXPECT_GE(prediction.seconds, bound);
  EXPECT_LE(prediction.seconds, 1.05 * bound);
  EXPECT_EQ(prediction.loads[static_cast<size_t>(prediction.bottleneck)].name, "up rack 0");
}

TEST(Simulator, APrivateLinkIsARouteOfItsOwn) {
  Fabric fabric = network(2);
  fabric.links = {{0, 1, 10 * kRate, 1e-6}};
  const Prediction prediction =
      simulate("direct", Collective::kBroadcast, fabric, {kMiB, kMiB, 1}, 0);
  EXPECT_NEAR(prediction.seconds, kMiB / (10 * kRate), 1e-4);
  EXPECT_THROW(load(prediction, "egress h0"), Error);
}

TEST(Simulator, WithinAHostABlockIsStagedOnceAndCopiedOut) {
  Fabric fabric = Fabric::one_host_of(4, 4);
  fabric.memory = {0, 0};
  fabric.copy_rate = 1e9;
  const double copy = kMiB / 1e9;
  EXPECT_NEAR(simulate("direct", Collective::kBroadcast, fabric, {kMiB, kMiB, 1}, 0).seconds,
              2 * copy, 1e-9)
      << "one copy in, and three out at the same time";
  // All stage their block at the same time, and fold the others' where they lie: four reads and a
  // write, where an addition to a sum has two.
  fabric.reduce_rate = 1e9;
  EXPECT_NEAR(simulate("direct", Collective::kAllReduce, fabric, {kMiB, kMiB, 1}).seconds,
              copy + copy * 5 / 3, 1e-9);
}

TEST(Simulator, ManySendersSlowAPortByABoundedShare) {
  const auto seconds = [](int hosts) {
    const SimulatedCall call{.bytes = kMiB, .slice_bytes = kMiB};
    return simulate("direct", Collective::kGather, network(hosts), call, 0).seconds;
  };
  const double per_sender = seconds(65) / 64;
  EXPECT_LT(seconds(513) / 512, 1.1 * per_sender);
}

TEST(Simulator, SendersOfShortMessagesLoseNothing) {
  const auto busy = [](size_t bytes) {
    const SimulatedCall call{.bytes = bytes, .slice_bytes = bytes};
    const Prediction prediction = simulate("direct", Collective::kGather, network(9), call, 0);
    return load(prediction, "ingress h0").busy / (8.0 * static_cast<double>(bytes) / kRate);
  };
  EXPECT_NEAR(busy(64 * 1024), 1, 1e-9);
  EXPECT_GT(busy(65 * 1024), 1.1);
}

TEST(Simulator, RanksShareTheCoresOfTheirHost) {
  Fabric fabric = Fabric::one_host_of(4, 4);
  fabric.memory = {0, 0};
  const SimulatedCall call{16 * kMiB, kMiB, 4};
  const double alone = simulate("sra", Collective::kAllReduce, fabric, call).seconds;
  fabric.hosts[0].cores = 2;
  const double shared = simulate("sra", Collective::kAllReduce, fabric, call).seconds;
  EXPECT_NEAR(shared / alone, 2, 0.1);
}

TEST(Simulator, HostsOfOneMachineShareItsCores) {
  Fabric fabric = network(4);
  fabric.reduce_rate = 2e7;  // it is the cores that bound it
  const SimulatedCall call{16 * kMiB, kMiB, 4};
  for (Fabric::Host& host : fabric.hosts) host.cores = 2;
  const Prediction apart = simulate("sra", Collective::kAllReduce, fabric, call);
  for (Fabric::Host& host : fabric.hosts) host.hardware.machine = "a machine/cpus:0,1";
  const Prediction together = simulate("sra", Collective::kAllReduce, fabric, call);
  EXPECT_GT(together.seconds / apart.seconds, 1.6);
  EXPECT_NEAR(load(together, "cores h0+h1+h2+h3").busy / load(apart, "cores h0").busy, 4, 0.1);
}

TEST(Simulator, MessagesOfSeveralContributionsTakeTheirOwnTime) {
  const Fabric fabric = network(4);
  const std::vector<Plan> all = code(schedule("recursive_doubling", Collective::kAllReduce, fabric),
                                     {Edges::kAll, 4, &fabric})
                                    .project_all();
  const SimulatedCall call{kMiB, kMiB, 1};
  CodingCost coding{.messages = {{.ratio = 0.01}, {.ratio = 0.02}}};
  const double fast = Simulator(all, fabric, coding).run(call).seconds;
  coding.messages[1].encode_rate = 1e9;
  const double sums_encode = Simulator(all, fabric, coding).run(call).seconds;
  coding.messages[1].decode_rate = 1e9;
  const double sums_decode = Simulator(all, fabric, coding).run(call).seconds;
  // Each rank encodes one sum of two, and decodes two.
  EXPECT_NEAR(sums_encode - fast, kMiB / 1e9, 1e-9);
  EXPECT_NEAR(sums_decode - sums_encode, 2 * kMiB / 1e9, 1e-9);
}

TEST(Simulator, MoreSlicesAreExtrapolated) {
  const Fabric fabric = network(4);
  for (const auto& name : {"ring", "sra", "binomial_tree"}) {
    for (const int window : {1, 2, 4}) {
      const size_t slice = 256 * 1024;
      const SimulatedCall all{100 * slice + 1000 * 64, slice, window, 101};
      SimulatedCall few = all;
      few.max_slices = 0;
      const double exact = simulate(name, Collective::kAllReduce, fabric, all).seconds;
      const double extrapolated = simulate(name, Collective::kAllReduce, fabric, few).seconds;
      EXPECT_NEAR(extrapolated / exact, 1, 0.02) << name << ", window " << window;
    }
  }
}

TEST(Simulator, AWindowHidesLatency) {
  Fabric fabric = network(8);
  fabric.network.alpha = 1e-3;
  const auto seconds = [&](int window) {
    return simulate("ring", Collective::kAllReduce, fabric, {8 * kMiB, 64 * 1024, window}).seconds;
  };
  EXPECT_NEAR(seconds(1) / seconds(4), 4, 0.5);
}

TEST(Simulator, TheTimelineHasEveryOpOfEverySlice) {
  const Fabric fabric = network(3);
  const std::vector<Plan> all = plans("ring", Collective::kAllReduce, fabric);
  const Prediction prediction = Simulator(all, fabric).run({3 * kMiB, kMiB, 2, 0, true});
  EXPECT_EQ(prediction.timeline.size(), 3 * 3 * all[0].ops.size());
  double last = 0;
  for (const Prediction::Step& step : prediction.timeline) {
    EXPECT_LE(step.begin, step.end);
    EXPECT_LT(step.op, all[0].ops.size());
    last = std::max(last, step.end);
  }
  EXPECT_DOUBLE_EQ(last, prediction.seconds);
}

TEST(Simulator, EveryAlgorithmEndsAtItsBoundAtTheEarliest) {
  for (const Generator& generator : generators()) {
    for (const Fabric& fabric : {network(6), Fabric::one_host_of(5, 2)}) {
      ScheduleRequest request{generator.collective, fabric.world_size(), 1, &fabric};
      if (!generator.applies(request)) continue;
      if (generator.parameters != nullptr) {
        request.parameter = generator.parameters(request).front();
      }
      const std::vector<Plan> all = generator.generate(request).project_all();
      const Simulator simulator(all, fabric);
      for (const size_t bytes : {size_t{4}, size_t{5000}, kMiB}) {
        const SimulatedCall call{bytes, 64 * 1024 * 30, 2};
        const Prediction once = simulator.run(call);
        EXPECT_GE(once.seconds, simulator.bound(call)) << generator.name;
        EXPECT_EQ(once.seconds, simulator.run(call).seconds) << "the same every time";
      }
    }
  }
}

TEST(Simulator, AThousandRanksAreASimulationOfSeconds) {
  const Fabric fabric = network(1024);
  const Prediction prediction =
      simulate("ring", Collective::kAllReduce, fabric, {64 * kMiB, 64 * kMiB, 1});
  EXPECT_GT(prediction.seconds, 2 * 1023 * (kAlpha + 2 * kOverhead));
  EXPECT_LT(prediction.seconds, 2 * 1023 * (3 * kAlpha + 2 * kOverhead + 65536 / kRate) * 1.1);
}

TEST(Simulator, PlansThatDoNotFitAreRefused) {
  const Fabric fabric = network(3);
  std::vector<Plan> all = plans("ring", Collective::kAllReduce, fabric);
  EXPECT_THROW(Simulator(std::span(all).first(2), fabric), Error);
  std::vector<Plan> unmatched = all;
  unmatched[1] = plans("direct", Collective::kAllReduce, fabric)[1];
  EXPECT_THROW(Simulator(unmatched, fabric), Error);
}

}  // namespace
}  // namespace q7x2
