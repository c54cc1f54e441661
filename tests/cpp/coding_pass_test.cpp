// Every Schedule that may be coded, with every choice of edges: the checker's proof, and what
// travels in which form.
#include "plan/ir/coding_pass.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "fabric/fabric.h"
#include "level.h"
#include "plan/algorithms/generators.h"
#include "plan/check/checker.h"
#include "plan/cost/cost_model.h"
#include "plan/cost/simulator.h"
#include "plan/ir/dag_window.h"
#include "random_fabric.h"

namespace q7x2 {
namespace {

const int kMaxRanks = test::at_level(8, 13);

bool has_codecs(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduceScatter ||
         collective == Collective::kAllGather;
}

/// Hosts in racks, of equal and of unequal size, in order and mixed; none known.
std::vector<std::optional<Fabric>> fabrics_of(int ranks) {
  std::vector<std::optional<Fabric>> fabrics{std::nullopt, Fabric::one_host_of(ranks, 2)};
  const uint64_t random = test::at_level(2, 4);
  for (uint64_t seed = 1; seed <= random; ++seed) fabrics.push_back(random_fabric(ranks, seed));
  for (const int per_host : {2, 3}) {
    for (const int per_rack : {1, 2}) {
      std::vector<int> host_of;
      for (int rank = 0; rank < ranks; ++rank) host_of.push_back(rank / per_host);
      Fabric fabric = Fabric::assumed(host_of);
      fabric.racks.clear();
      for (size_t host = 0; host < fabric.hosts.size(); ++host) {
        fabric.hosts[host].rack = static_cast<int>(host) / per_rack;
        if (fabric.hosts[host].rack == static_cast<int>(fabric.racks.size())) {
          fabric.racks.push_back({"r" + std::to_string(host), 1e8, 1e8});
        }
      }
      fabric.validate();
      fabrics.push_back(fabric);
    }
  }
  return fabrics;
}

/// `visit(generator, dense Schedule, edges, fabric)` for all that may be coded so; without coded
/// edges those are all.
template <typename Visit>
void for_each(Visit visit) {
  for (int n = 2; n <= kMaxRanks; ++n) {
    int number = 0;
    for (const std::optional<Fabric>& fabric : fabrics_of(n)) {
      const Fabric* const known = fabric ? &*fabric : nullptr;
      for (const Generator& generator : generators()) {
        ScheduleRequest request{generator.collective, n, -1, known};
        if (!has_codecs(generator.collective) || !generator.applies(request)) continue;
        std::vector<int> parameters{0};
        if (generator.parameters != nullptr) parameters = generator.parameters(request);
        for (const int parameter : parameters) {
          request.parameter = parameter;
          request.wants_owners = generator.parameters != nullptr && number % 2 == 0;
          const Schedule dense = generator.generate(request);
          if (dense.num_members() > n) continue;  // servers know no codecs
          for (const Edges each : {Edges::kNone, Edges::kRacks, Edges::kHosts, Edges::kAll}) {
            const EdgeCoding edges(each, n, known);
            if (!generator.may_code(edges)) continue;
            SCOPED_TRACE(std::string(to_string(generator.collective)) + " by " +
                         generator.full_name(parameter) + ", n = " + std::to_string(n) +
                         ", fabric " + std::to_string(number) + ", edges " + to_string(each));
            visit(generator, dense, edges, known);
            if (testing::Test::HasFailure()) return;
          }
        }
      }
      ++number;
    }
  }
}

TEST(CodingPass, PassesTheChecker) {
  for_each([](const Generator&, const Schedule& dense, const EdgeCoding& edges, const Fabric*) {
    const std::vector<Plan> plans = code(dense, edges).project_all();
    ASSERT_NO_THROW(check_plans(plans)) << to_string(plans[0]);
    ASSERT_EQ(plans[0].edges, edges.any() ? edges.edges() : Edges::kNone);
  });
}

/// By source and destination: messages, their bytes as shares of a slice, and those of coded ones.
using Traffic = std::map<std::pair<int, int>, std::tuple<int, double, double>>;

Traffic traffic_of(const Schedule& schedule, const Fabric* fabric) {
  Traffic traffic;
  for (const Round& round : schedule.rounds()) {
    const EdgeCoding coded(round.coded, schedule.world_size(), fabric);
    const auto add = [&](int from, int to, uint32_t messages, double share) {
      auto& [count, all, of_coded] = traffic[{from, to}];
      count += static_cast<int>(messages) * round.repeats;
      all += share * messages * round.repeats;
      of_coded += coded(from, to) ? share * messages * round.repeats : 0;
    };
    for (const Edge& edge : round.edges) add(edge.from, edge.to, edge.messages, edge.share);
    for (const Cross& cross : round.crosses) {
      for (size_t i = 0; i < cross.from->size(); ++i) {
        for (size_t j = 0; j < cross.to->size(); ++j) {
          const int from = (*cross.from)[i];
          const int to = (*cross.to)[j];
          if (from != to && !(cross.off_diagonal && i == j)) {
            add(from, to, cross.messages, cross.share);
          }
        }
      }
    }
  }
  return traffic;
}

Traffic traffic_of(const std::vector<Plan>& plans) {
  Traffic traffic;
  for (const Plan& plan : plans) {
    const auto total = std::accumulate(plan.part_weights.begin(), plan.part_weights.end(), 0.0);
    for (const Op& op : plan.ops) {
      if (op.kind != OpKind::kSend) continue;
      const double share =
          plan.part_weights.empty() ? 1 : plan.part_weights[op.length_of.index] / total;
      auto& [count, all, of_coded] = traffic[{plan.rank, op.peer}];
      ++count;
      all += share;
      of_coded += plan.sources_of(op)[0].is_coded() ? share : 0;
    }
  }
  return traffic;
}

// What the cost model reads is what the Plans do, coded messages included.
TEST(CodingPass, ItsRoundsAreWhatItsPlansSend) {
  for_each([](const Generator&, const Schedule& dense, const EdgeCoding& edges, const Fabric* on) {
    const Schedule coded = code(dense, edges);
    const Traffic rounds = traffic_of(coded, on);
    const Traffic plans = traffic_of(coded.project_all());
    ASSERT_EQ(rounds.size(), plans.size());
    for (const auto& [edge, load] : plans) {
      SCOPED_TRACE(std::to_string(edge.first) + " -> " + std::to_string(edge.second));
      ASSERT_TRUE(rounds.contains(edge));
      ASSERT_EQ(std::get<0>(rounds.at(edge)), std::get<0>(load));
      ASSERT_NEAR(std::get<1>(rounds.at(edge)), std::get<1>(load), 1e-9);
      ASSERT_NEAR(std::get<2>(rounds.at(edge)), std::get<2>(load), 1e-9);
    }
  });
}

// Each way over a coded edge is coded, and nothing else but results that cross one somewhere.
TEST(CodingPass, CodesWhatCrossesTheEdges) {
  for_each([](const Generator&, const Schedule& dense, const EdgeCoding& edges, const Fabric*) {
    for (const Plan& plan : code(dense, edges).project_all()) {
      for (const Op& op : plan.ops) {
        if (op.kind != OpKind::kSend) continue;
        const bool is_coded = plan.sources_of(op)[0].is_coded();
        if (edges(plan.rank, op.peer)) {
          ASSERT_TRUE(is_coded);
        }
        if (!edges.any()) {
          ASSERT_FALSE(is_coded);
        }
      }
    }
  });
}

TEST(CodingPass, NeverSendsTheCallersInput) {
  for_each([](const Generator&, const Schedule& dense, const EdgeCoding& edges, const Fabric*) {
    for (const Plan& plan : code(dense, edges).project_all()) {
      for (const Op& op : plan.ops) {
        ASSERT_FALSE(op.kind == OpKind::kSend && plan.sources_of(op)[0].space == Space::kInput);
      }
    }
  });
}

/// How often Plans encode the contribution of some rank before it is in the result.
int encodings_of(const std::vector<Plan>& plans) {
  using Place = std::pair<Space, uint16_t>;
  std::map<std::tuple<int, int, int>, int> sent;
  std::vector<std::map<Place, int>> depth(plans.size());
  std::vector<DagWindow> dags;
  std::vector<std::vector<DagWindow::Step>> waiting(plans.size());
  for (const Plan& plan : plans) dags.emplace_back(plan, 1, 1).admit();
  int most = 0;
  const auto run = [&](const Plan& plan, const Op& op, std::map<Place, int>& depth_of) {
    const auto place = [&](Block block) {
      const bool in_place = is_flat(plan.collective) && block.is_part();
      return Place(in_place ? Space::kOutput : block.space, block.index);
    };
    int deepest = 0;
    for (const Block& source : plan.sources_of(op)) {
      deepest = std::max(deepest, depth_of[place(source)]);
    }
    if (op.kind == OpKind::kSend) {
      sent[{plan.rank, op.peer, op.message}] = deepest;
      return true;
    }
    if (op.kind == OpKind::kRecv) {
      const auto message = sent.find({op.peer, plan.rank, op.message});
      if (message == sent.end()) return false;
      deepest = message->second;
    } else {
      deepest += op.destination.is_coded() && !op.is_final ? 1 : 0;
    }
    depth_of[place(op.destination)] = deepest;
    most = std::max(most, deepest);
    return true;
  };
  for (bool moves = true; moves;) {
    moves = false;
    for (size_t rank = 0; rank < plans.size(); ++rank) {
      while (const auto step = dags[rank].next()) waiting[rank].push_back(*step);
      std::erase_if(waiting[rank], [&](DagWindow::Step step) {
        if (!run(plans[rank], plans[rank].ops[step.op], depth[rank])) return false;
        dags[rank].complete(step);
        return moves = true;
      });
    }
  }
  for (const DagWindow& dag : dags) EXPECT_TRUE(dag.done());
  return most;
}

TEST(CodingPass, CountsHowOftenContributionsAreEncoded) {
  bool some_never = false, some_once = false, some_again = false;
  for_each([&](const Generator&, const Schedule& dense, const EdgeCoding& edges, const Fabric*) {
    if (dense.collective() == Collective::kAllGather) return;
    const int counted = encodings_on_the_way(dense, edges);
    ASSERT_LE(encodings_of(code(dense, edges).project_all()), counted);
    some_never = some_never || counted == 0;
    some_once = some_once || counted == 1;
    some_again = some_again || counted > 1;
  });
  EXPECT_TRUE(some_never && some_once && some_again);
}

TEST(CodingPass, SelectionsOfRingsWouldBeEncodedAtEachHop) {
  for (const Generator& generator : generators()) {
    if (generator.collective != Collective::kAllReduce) continue;
    const ScheduleRequest request{Collective::kAllReduce, 5};
    const EdgeCoding all(Edges::kAll, 5, nullptr);
    if (generator.name == "ring") {
      EXPECT_GT(encodings_on_the_way(generator.generate(request), all), 1);
    }
    if (generator.name == "sra") {
      EXPECT_EQ(encodings_on_the_way(generator.generate(request), all), 1);
    }
  }
}

// The model loads each resource with the bytes of coded and of exact messages that go through it.
TEST(CodingPass, TheCostModelLoadsResourcesAsThePlansDo) {
  const CodingCost coding{.messages = {{.ratio = 0.25}}};
  for_each([&](const Generator&, const Schedule& dense, const EdgeCoding& edges, const Fabric* on) {
    if (on == nullptr) return;
    const Site site(*on);
    const Schedule coded = code(dense, edges);
    const Prediction model = CostModel(coded, site, coding).predict({1000000, 1000000, 1});
    std::map<std::string, double> loads;
    for (const auto& [edge, load] : traffic_of(coded.project_all())) {
      const auto& [messages, all, of_coded] = load;
      for (const int resource : site.routes.between(edge.first, edge.second).resources) {
        loads[site.routes.resources()[static_cast<size_t>(resource)].name] +=
            (all - 0.75 * of_coded) * 1e6;
      }
    }
    for (const auto& [name, bytes] : loads) {
      const auto load = std::ranges::find(model.loads, name, &Prediction::Load::name);
      ASSERT_NE(load, model.loads.end()) << name;
      ASSERT_NEAR(load->bytes, bytes, 1) << name;
    }
  });
}

TEST(CodingPass, TheCostModelIsNearTheSimulator) {
  const CodingCost coding{.messages = {{.ratio = 0.25, .encode_rate = 2e9, .decode_rate = 4e9}}};
  for (const Fabric& fabric : {Fabric::uniform(4, 1, 125e6), Fabric::uniform(2, 4, 125e6),
                               Fabric::uniform(4, 2, 1e9), Fabric::one_host_of(4, 4)}) {
    const Site site(fabric);
    const int n = fabric.world_size();
    for (const Generator& generator : generators()) {
      ScheduleRequest request{generator.collective, n, -1, &fabric};
      if (generator.codable == Codable::kNever || !generator.applies(request)) continue;
      if (generator.parameters != nullptr) request.parameter = generator.parameters(request).back();
      const Schedule dense = generator.generate(request);
      for (const Edges each : {Edges::kHosts, Edges::kAll}) {
        const EdgeCoding edges(each, n, &fabric);
        if (!edges.any() || !generator.may_code(edges)) continue;
        const Schedule coded = code(dense, edges);
        const std::vector<Plan> plans = coded.project_all();
        for (const size_t bytes : {size_t{1} << 12, size_t{1} << 24}) {
          const SimulatedCall call{bytes, std::min<size_t>(bytes, size_t{1} << 20), 4};
          const double simulated = Simulator(plans, fabric, coding).run(call).seconds;
          const double ratio = CostModel(coded, site, coding).seconds(call) / simulated;
          EXPECT_GT(ratio, 0.5) << plans[0].algorithm << " " << to_string(each) << " " << bytes;
          EXPECT_LT(ratio, 2.2) << plans[0].algorithm << " " << to_string(each) << " " << bytes;
        }
      }
    }
  }
}

TEST(CodingPass, ServesThousandsOfRanks) {
  for (const int n : test::at_level<std::vector<int>>({1024}, {1024, 4096})) {
    const Fabric fabric = Fabric::uniform(n / 8, 8, 1e9);
    for (const Generator& generator : generators()) {
      ScheduleRequest request{generator.collective, n, -1, &fabric};
      if (generator.codable == Codable::kNever || !generator.applies(request)) continue;
      if (generator.parameters != nullptr) request.parameter = generator.parameters(request).back();
      const Schedule dense = generator.generate(request);
      for (const Edges each : {Edges::kHosts, Edges::kAll}) {
        const EdgeCoding edges(each, n, &fabric);
        if (!generator.may_code(edges)) continue;
        encodings_on_the_way(dense, edges);
        const Schedule coded = code(dense, edges);
        for (const int rank : {0, n / 2, n - 1}) EXPECT_NO_THROW(coded.project(rank));
      }
    }
  }
}

TEST(EdgeCoding, WishesThatMeanTheSameCompeteOnce) {
  const auto names = [](EdgeWish wish, const Fabric& fabric) {
    std::string all;
    for (const EdgeCoding& coding : edge_codings(wish, fabric.world_size(), &fabric)) {
      all += std::string(to_string(coding.edges())) + " ";
    }
    return all;
  };
  const Fabric one = Fabric::one_host_of(4, 4);
  const Fabric apart = Fabric::uniform(4, 1, 1e8);
  const Fabric mixed = Fabric::uniform(2, 2, 1e8);
  EXPECT_EQ(names(EdgeWish::kAuto, one), "all ");
  EXPECT_EQ(names(EdgeWish::kAuto, apart), "all ");
  EXPECT_EQ(names(EdgeWish::kAuto, mixed), "all hosts ");
  EXPECT_EQ(names(EdgeWish::kHost, one), "none ");
  EXPECT_EQ(names(EdgeWish::kHost, mixed), "hosts ");
  EXPECT_EQ(names(EdgeWish::kRack, mixed), "none ");
  EXPECT_EQ(names(EdgeWish::kAll, mixed), "all ");
  EXPECT_EQ(names(EdgeWish::kSlow, one), "all none ");
  EXPECT_EQ(names(EdgeWish::kSlow, mixed), "all hosts none ");
  EXPECT_EQ(names(EdgeWish::kAuto, Fabric::one_host_of(1, 1)), "none ");
}

TEST(EdgeCoding, NamesAreCheckedAtOnce) {
  for (const char* name : {"auto", "all", "host", "rack", "slow"}) {
    EXPECT_STREQ(to_string(parse_edge_wish(name)), name);
  }
  try {
    parse_edge_wish("hosts");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(std::string(error.what()),
              "edges: expected one of auto, all, host, rack, slow, got 'hosts'");
  }
}

}  // namespace
}  // namespace q7x2
