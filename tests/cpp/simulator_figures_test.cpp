// What the simulator has said of some networks, to the last digits: it may become faster, but its
// figures stay.
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "plan/algorithms/generators.h"
#include "plan/cost/simulator.h"
#include "plan/ir/coding_pass.h"
#include "plan/ir/edge_coding.h"

namespace q7x2 {
namespace {

constexpr double kRate = 125e6;

/// 16 hosts on one switch.
Fabric on_a_switch() {
  return Fabric::uniform(16, 1, kRate);
}

/// Four racks of four hosts; what leaves a rack shares a cable of half of its hosts' rates.
Fabric in_racks() {
  Fabric fabric = on_a_switch();
  fabric.racks.assign(4, Fabric::Rack{.name = "", .up = 2 * kRate, .down = 2 * kRate});
  for (size_t host = 0; host < fabric.hosts.size(); ++host) {
    fabric.hosts[host].rack = static_cast<int>(host / 4);
  }
  return fabric;
}

/// Four hosts with four ranks each, that take turns on two cores.
Fabric crowded() {
  Fabric fabric = Fabric::uniform(4, 4, kRate);
  for (Fabric::Host& host : fabric.hosts) host.cores = 2;
  return fabric;
}

/// Two pairs of hosts that are far from each other or slow, a private link, wires that save up
/// bursts, and a slow processor.
Fabric uneven() {
  Fabric fabric = on_a_switch();
  fabric.pairs = {{.from = 0, .to = 2, .alpha = 1e-3, .solo = kRate / 4},
                  {.from = 3, .to = 1, .alpha = 2e-4, .solo = kRate / 3}};
  fabric.links = {{.a = 4, .b = 5, .rate = 4 * kRate, .alpha = 1e-5}};
  fabric.burst = 64 * 1024;
  fabric.hosts[7].rates = {{"cpu", 0, 2e8, {}}};
  return fabric;
}

/// One host whose ranks are bound to two NUMA nodes.
Fabric one_host() {
  Fabric fabric = Fabric::one_host_of(8, 8);
  for (int rank = 0; rank < 8; ++rank) {
    fabric.bindings.push_back({rank / 4, std::to_string(rank)});
  }
  fabric.interconnect.rate = 4e9;
  return fabric;
}

/// A short call, one of many slices with a rest, and a long one that is extrapolated.
constexpr SimulatedCall kCalls[] = {
    {.bytes = 5000, .slice_bytes = 8192, .window = 1},
    {.bytes = 1'000'000, .slice_bytes = 131'072, .window = 3},
    {.bytes = 256'000'000, .slice_bytes = 1'048'576, .window = 4},
};

struct Row {
  const char* algorithm;
  Collective collective;
  Edges edges;
  double figures[5][3];  ///< by network and call
};

const Row kRows[] = {
    {"ring",
     Collective::kAllReduce,
     Edges::kNone,
     {{33.0587023392, 3.182376879, 752.546686713},
      {41.0682775593, 3.991581879, 949.312936713},
      {12.0092740317, 0.5703300085, 137.724639032},
      {38.0559365145, 2.96972224837, 700.743126583},
      {2.00045951611, 1.03293254692, 9.14606480585}}},
    {"sra",
     Collective::kAllReduce,
     Edges::kNone,
     {{39.0479028962, 3.16389268833, 749.157959758},
      {47.0660609643, 37.721354283, 1423.55173431},
      {13.0146955541, 1.56738156817, 381.843985955},
      {43.0613106007, 3.26930349567, 771.750630828},
      {1.00033307086, 1.05074112092, 13.5593732219}}},
    {"sra",
     Collective::kAllReduce,
     Edges::kAll,
     {{39.0384146912, 1.1658051258, 239.535490092},
      {47.0476142352, 33.9216416634, 454.195277065},
      {13.0107116696, 0.489938486275, 112.463380049},
      {43.0515346065, 1.2205428239, 247.560829044},
      {2.00020792752, 2.01834889946, 6.32854143959}}},
    {"halving_doubling",
     Collective::kAllReduce,
     Edges::kNone,
     {{39.0497716398, 3.17588729567, 750.88535338},
      {47.058628621, 3.844357829, 910.311743894},
      {12.0063225786, 0.478235405667, 114.994986375},
      {43.0643891957, 37.4557183163, 852.92256279},
      {2.00029229474, 1.02724374125, 7.69055928752}}},
    {"recursive_doubling",
     Collective::kAllReduce,
     Edges::kAll,
     {{0.01748725, 2.31307327573, 602.278595922},
      {32.0237585833, 35.4038402261, 876.074139749},
      {0.00517024166667, 0.752582810267, 188.285259412},
      {34.0290227292, 36.5118953688, 653.515268198},
      {2.00030881719, 2.03787480937, 11.0862406472}}},
    {"double_binary_tree",
     Collective::kBroadcast,
     Edges::kNone,
     {{0.01185875, 1.44010904, 359.241145434},
      {34.0156, 37.126871648, 570.964726648},
      {6.00465597813, 7.541768093, 145.662853925},
      {0.01023075, 1.412015064, 359.222219662},
      {1.00020556641, 1.02205827325, 6.3035849524}}},
    {"binomial_tree",
     Collective::kReduce,
     Edges::kNone,
     {{1.00939148958, 2.40917458675, 343.81740997},
      {1.01232815625, 2.96194792008, 485.002688616},
      {1.00440403854, 1.57097193719, 138.376128798},
      {1.00980735417, 2.62278114021, 399.931556917},
      {1.00022013932, 1.02244518192, 6.30732129887}}},
    {"direct",
     Collective::kAllGather,
     Edges::kNone,
     {{0.13382725, 28.9546100064, 7111.76436086},
      {32.23854725, 79.6334325395, 12165.8014736},
      {0.0683397, 13.6422534053, 3153.51756633},
      {0.14186775, 29.4077491168, 7227.07804247},
      {1.00114954375, 1.19951375, 51.1978724416}}},
    {"pairwise",
     Collective::kAllToAll,
     Edges::kNone,
     {{0.13937125, 29.0796841517, 7113.26525061},
      {32.24083525, 79.8932135776, 12213.1582466},
      {0.068468375, 13.8069270626, 3157.74103579},
      {0.14895175, 29.5328232621, 7239.69278992},
      {1.00117865625, 1.206840394, 52.0299031295}}},
    {"halving_doubling",
     Collective::kReduceScatter,
     Edges::kNone,
     {{0.135286791667, 25.599776234, 6233.29823171},
      {0.163806, 38.5812808723, 7506.36171838},
      {0.0210758083333, 4.75866812821, 931.878471207},
      {34.15359075, 42.0590002165, 6815.00337296},
      {2.00069820625, 1.109380578, 27.5332696683}}},
};

/// Plans that do not depend on what is known of the network: only its simulation is tested here.
std::vector<Plan> plans_of(const Row& row, int ranks) {
  for (const Generator& generator : generators()) {
    if (generator.name != row.algorithm || generator.collective != row.collective) continue;
    const Schedule schedule =
        generator.generate({row.collective, ranks, is_rooted(row.collective) ? 1 : -1});
    if (row.edges == Edges::kNone) return schedule.project_all();
    return code(schedule, {row.edges, ranks, nullptr}).project_all();
  }
  throw Error(ErrorCode::kInvalidArgument, "no such algorithm");
}

/// All that a prediction says, in one number: a sum in which each load has a weight of its own.
double figure(const Prediction& prediction) {
  double sum = prediction.seconds + 3 * prediction.first_slice_seconds +
               7 * prediction.seconds_after_pause + prediction.bottleneck;
  double weight = 1;
  for (const Prediction::Load& load : prediction.loads) {
    sum += (weight += 0.25) * (load.busy + 1e-9 * load.bytes);
  }
  return sum;
}

TEST(SimulatorFigures, Stay) {
  const std::vector<Fabric> networks = {on_a_switch(), in_racks(), crowded(), uneven(), one_host()};
  CodingCost coding{.messages = {{.ratio = 0.25, .encode_rate = 4e9, .decode_rate = 6e9},
                                 {.ratio = 0.3, .encode_rate = 3e9, .decode_rate = 5e9}},
                    .select_rate = 5e9};
  for (const Row& row : kRows) {
    for (size_t network = 0; network < networks.size(); ++network) {
      const Fabric& fabric = networks[network];
      const std::vector<Plan> plans = plans_of(row, fabric.world_size());
      const Simulator simulator(plans, fabric, coding);
      for (size_t call = 0; call < std::size(kCalls); ++call) {
        const double expected = row.figures[network][call];
        EXPECT_NEAR(figure(simulator.run(kCalls[call])), expected, 1e-9 * expected)
            << row.algorithm << ' ' << to_string(row.collective) << ", network " << network
            << ", call " << call;
      }
    }
  }
}

}  // namespace
}  // namespace q7x2
