// Schedules as JSON: what is written is read again, and nothing else than a proven Schedule is.
#include "plan/files/plan_json.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "fabric/fabric.h"
#include "fabric/json_fields.h"
#include "plan/algorithms/generators.h"
#include "plan/choose/planner.h"
#include "plan/cost/cost_model.h"
#include "plan/files/plan_files.h"
#include "reference_run.h"

namespace q7x2 {
namespace {

Schedule generate(const std::string& name, Collective op, int n, int root = -1) {
  const auto found = std::ranges::find_if(generators(), [&](const Generator& each) {
    return each.name == name && each.collective == op;
  });
  return found->generate({op, n, root});
}

std::string complaint(const std::string& text) {
  try {
    schedule_from_json(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
    return error.what();
  }
  return "";
}

#define EXPECT_COMPLAINT(text, part)                                                \
  do {                                                                              \
    const std::string what = complaint(text);                                       \
    EXPECT_NE(what.find(part), std::string::npos) << "complaint: '" << what << "'"; \
  } while (false)

std::string replaced(std::string text, const std::string& before, const std::string& after) {
  const size_t at = text.find(before);
  EXPECT_NE(at, std::string::npos) << before;
  return text.replace(at, before.size(), after);
}

std::string without_digest(const std::string& algorithm) {
  return algorithm.substr(0, algorithm.find('@'));
}

TEST(PlanJson, WhatIsWrittenIsRead) {
  for (const Generator& generator : generators()) {
    for (const int n : {1, 2, 6, 8}) {
      const Fabric fabric = Fabric::uniform(2, std::max(n / 2, 1), 1e9);
      ScheduleRequest request{generator.collective, n};
      if (is_rooted(generator.collective)) request.root = n / 2;
      if (fabric.world_size() == n) request.fabric = &fabric;
      if (!generator.applies(request)) continue;
      if (generator.parameters != nullptr) request.parameter = generator.parameters(request).back();
      SCOPED_TRACE(generator.name + " by " + std::to_string(n));
      const Schedule schedule = generator.generate(request);
      const Schedule read = schedule_from_json(to_json(schedule));
      EXPECT_EQ(without_digest(read.algorithm()), "file:" + schedule.algorithm());
      EXPECT_EQ(read.contract(), schedule.contract());
      EXPECT_EQ(read.part_weights(), schedule.part_weights());
      for (int rank = 0; rank < n; ++rank) {
        std::string ours = to_string(read.project(rank));
        std::string theirs = to_string(schedule.project(rank));
        EXPECT_EQ(ours.substr(ours.find('\n')), theirs.substr(theirs.find('\n')));
        EXPECT_EQ(read.header(rank).rounds_once, schedule.header(rank).rounds_once);
      }
    }
  }
}

TEST(PlanJson, CoverWhatTheModelNeeds) {
  const Fabric fabric = Fabric::uniform(8, 1, 1e9);
  const Site site(fabric);
  for (const std::string name : {"ring", "sra", "recursive_doubling", "double_binary_tree"}) {
    const Schedule schedule = generate(name, Collective::kAllReduce, 8);
    const Schedule read = schedule_from_json(to_json(schedule));
    const SimulatedCall call{1 << 20, 1 << 18, 4};
    const double ours = CostModel(read, site).seconds(call);
    const double theirs = CostModel(schedule, site).seconds(call);
    EXPECT_GT(ours, theirs * 0.7) << name;
    EXPECT_LT(ours, theirs * 1.5) << name;
  }
}

TEST(PlanJson, ASmallTextByHand) {
  const std::string text = R"({"format": 1, "collective": "reduce", "ranks": 2, "root": 1,
      "algorithm": "by-hand", "plans": [
        [{"send": "in[0]", "to": 1}],
        [{"recv": "scratch[0]", "from": 0, "length": "in[0]"},
         {"reduce": ["scratch[0]", "in[0]"], "into": "out[0]", "final": true, "after": [0]}]]})";
  const Schedule schedule = schedule_from_json(text);
  EXPECT_EQ(schedule.algorithm().substr(0, 13), "file:by-hand@");
  EXPECT_EQ(schedule.rounds().size(), 1);
  // White space changes nothing, another order does.
  EXPECT_EQ(schedule_from_json(replaced(text, ", ", ",   ")).algorithm(), schedule.algorithm());
  const std::string other =
      replaced(text, R"(["scratch[0]", "in[0]"])", R"(["in[0]", "scratch[0]"])");
  EXPECT_NE(schedule_from_json(other).algorithm(), schedule.algorithm());
}

TEST(PlanJson, ComplaintsNameThePlace) {
  const std::string text = to_json(generate("ring", Collective::kAllReduce, 3));
  EXPECT_COMPLAINT("{", "not JSON");
  EXPECT_COMPLAINT("[]", "expected an object, got []");
  EXPECT_COMPLAINT(replaced(text, "\"format\": 1", "\"format\": 2"), "format: expected");
  EXPECT_COMPLAINT(replaced(text, "all_reduce", "all_reduse"), "collective: expected one of");
  EXPECT_COMPLAINT(replaced(text, "\"ranks\": 3", "\"ranks\": 4"), "a Plan for each of 4 ranks");
  EXPECT_COMPLAINT(replaced(text, "\"ranks\": 3", "\"ranks\": 2"), "expected at most 2 items");
  EXPECT_COMPLAINT(replaced(text, "\"ranks\": 3", "\"ranks\": 3e9"), "ranks: expected a whole");
  EXPECT_COMPLAINT(replaced(text, "\"ring\"", "\"my ring\""), "algorithm: expected a name");
  EXPECT_COMPLAINT(replaced(text, "[1,1,1]", "[1,0,1]"), "part_weights[1]: expected");
  EXPECT_COMPLAINT(replaced(text, "[1,1,1]", "[]"), "part_weights: expected weights");
  EXPECT_COMPLAINT(replaced(text, "\"send\"", "\"sent\""),
                   "plans[0][0]: expected one of \"send\", \"recv\"");
  EXPECT_COMPLAINT(replaced(text, "out[2]", "out[70000]"), "plans[0][0].send: expected a block");
  EXPECT_COMPLAINT(replaced(text, "\"to\":1", "\"to\":0"), "plans[0][0].to: expected another rank");
  EXPECT_COMPLAINT(replaced(text, "\"to\":1", "\"to\":3"), "plans[0][0].to: expected a whole");
  EXPECT_COMPLAINT(replaced(text, "\"message\":0", "\"message\":4096"), "[0].message: expected");
  EXPECT_COMPLAINT(replaced(text, "\"after\":[1]", "\"after\":[2]"), "plans[0][2].after[0]");
  EXPECT_COMPLAINT(replaced(text, "\"quorum\":3", "\"quorum\":0"), "contract.quorum: expected");
  EXPECT_COMPLAINT(replaced(text, "\"final\":true", "\"finale\":true"), "unknown field");
  // What the checker finds.
  EXPECT_COMPLAINT(replaced(text, "\"final\":true", "\"final\":false"), "bad Plan: all_reduce");
  EXPECT_COMPLAINT(replaced(text, "out[2]", "out[0]"), "bad Plan: all_reduce");
  EXPECT_COMPLAINT(replaced(text, "\"quorum\":3", "\"quorum\":2"), "");
}

TEST(PlanJson, AFieldThatIsNamedTwiceIsRefused) {
  const std::string text = to_json(generate("ring", Collective::kAllReduce, 3));
  EXPECT_COMPLAINT(replaced(text, "\"to\":1", "\"to\":1,\"to\":2"),
                   "plans[0][0].to: the field is named twice");
  EXPECT_COMPLAINT(replaced(text, "\"ranks\": 3", "\"ranks\": 3, \"ranks\": 3"),
                   "ranks: the field is named twice");
  EXPECT_COMPLAINT(replaced(text, "\"quorum\":3", "\"quorum\":2,\"quorum\":3"),
                   "contract.quorum: the field is named twice");
}

/// By each send, as "rank:op", the receive that it meets.
std::map<std::string, std::string> meetings(const Schedule& schedule) {
  std::map<std::tuple<int, int, int>, std::string> receives;  // from, to, message
  const std::vector<Plan> plans = schedule.project_all();
  const auto place = [](const Plan& plan, size_t op) {
    return std::to_string(plan.rank) + ":" + std::to_string(op);
  };
  for (const Plan& plan : plans) {
    for (size_t i = 0; i < plan.ops.size(); ++i) {
      const Op& op = plan.ops[i];
      if (op.kind == OpKind::kRecv) receives[{op.peer, plan.rank, op.message}] = place(plan, i);
    }
  }
  std::map<std::string, std::string> met;
  for (const Plan& plan : plans) {
    for (size_t i = 0; i < plan.ops.size(); ++i) {
      const Op& op = plan.ops[i];
      if (op.kind == OpKind::kSend) {
        met[place(plan, i)] = receives[{plan.rank, op.peer, op.message}];
      }
    }
  }
  return met;
}

// Whichever messages are numbered, and however: the k-th unnumbered send to a rank meets its k-th
// unnumbered receive.
TEST(PlanJson, NumberedAndUnnumberedMessagesMix) {
  std::mt19937 random(48);  // NOLINT: repeatable
  for (const auto& [name, op] : {std::pair("ring", Collective::kAllReduce),
                                 {"sra", Collective::kAllReduce},
                                 {"recursive_doubling", Collective::kAllReduce},
                                 {"ring", Collective::kAllGather},
                                 {"pairwise", Collective::kAllToAll}}) {
    const Schedule schedule = generate(name, op, 4);
    for (int i = 0; i < 50; ++i) {
      Json json = Json::parse(to_json(schedule));
      std::map<std::tuple<int, int, int>, std::optional<int>> renamed;  // from, to, message
      std::map<std::pair<int, int>, int> used;
      for (int rank = 0; rank < 4; ++rank) {
        for (Json& each : json["plans"][static_cast<size_t>(rank)]) {
          if (!each.contains("message")) continue;
          const bool sends = each.contains("send");
          const int peer = each[sends ? "to" : "from"].get<int>();
          const std::pair pair = sends ? std::pair(rank, peer) : std::pair(peer, rank);
          const auto [found, is_new] = renamed.try_emplace(
              {pair.first, pair.second, each["message"].get<int>()}, std::nullopt);
          // Small numbers, which unnumbered messages take as well.
          if (is_new && random() % 2 == 0) found->second = (used[pair]++ * 3) % 7;
          if (found->second) {
            each["message"] = *found->second;
          } else {
            each.erase("message");
          }
        }
      }
      EXPECT_EQ(meetings(schedule_from_json(json.dump())), meetings(schedule)) << json.dump();
    }
  }
}

TEST(PlanJson, AnUnnumberedMessageMeetsNoNumberedOne) {
  const std::string text = R"({"format": 1, "collective": "broadcast", "ranks": 2, "root": 0,
      "algorithm": "by-hand", "plans": [[{"send": "out[0]", "to": 1, "message": 0}],
                                        [{"recv": "out[0]", "from": 0, "message": 0}]]})";
  EXPECT_EQ(complaint(text), "");
  EXPECT_NE(complaint(replaced(text, R"("to": 1, "message": 0)", R"("to": 1)")), "");
  EXPECT_NE(complaint(replaced(text, R"("from": 0, "message": 0)", R"("from": 0)")), "");
}

// A text with one random change either is refused with a typed error, or keeps its promise.
TEST(PlanJson, RandomChangesNeverPassWrongly) {
  std::mt19937 random(20);  // NOLINT: repeatable
  const auto below = [&](size_t count) { return random() % count; };
  const std::string alphabet = "0123456789[]{},:\"-. outinscrchend";
  int refused = 0;
  int passed = 0;
  for (const auto& [name, op, root] : {std::tuple("ring", Collective::kAllReduce, -1),
                                       {"sra", Collective::kReduceScatter, -1},
                                       {"binomial_tree", Collective::kReduce, 1},
                                       {"pairwise", Collective::kAllToAll, -1},
                                       {"dissemination", Collective::kBarrier, -1}}) {
    const std::string text = to_json(generate(name, op, 4, root));
    for (int i = 0; i < 3000; ++i) {
      std::string changed = text;
      for (size_t edits = 1 + below(2); edits > 0; --edits) {
        const size_t at = below(changed.size());
        const size_t kind = below(5);
        if (kind == 0) changed[at] = alphabet[below(alphabet.size())];
        if (kind == 1) changed.erase(at, 1 + below(12));
        if (kind == 2) changed.insert(at, 1, alphabet[below(alphabet.size())]);
        const size_t digit = changed.find_first_of("0123456789", at);
        if (kind == 4 && digit != std::string::npos) changed[digit] = alphabet[below(10)];
        if (kind == 3) {  // a line twice, or none
          const size_t begin = changed.find('\n', at);
          const size_t end = changed.find('\n', begin + 1);
          if (end == std::string::npos) continue;
          if (below(2) == 0)
            changed.insert(begin, changed.substr(begin, end - begin));
          else
            changed.erase(begin, end - begin);
        }
      }
      std::optional<Schedule> read;
      try {
        read = schedule_from_json(changed);
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what() << changed;
        ++refused;
      }
      if (!read) continue;
      ++passed;
      const Contract usual = Contract::of({read->collective(), read->world_size(), read->root()});
      if (read->contract() != usual) continue;
      run_and_compare(read->project_all(), 37, 16);
      if (HasFailure()) FAIL() << changed;
    }
  }
  EXPECT_GT(refused, 9000);
  EXPECT_GT(passed, 200);  // changed digits of weights, numbers of messages, names
}

class PlanFiles : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    const std::string path = testing::TempDir() + "/plan_json_test_" + name;
    std::ofstream(path) << text;
    return path;
  }
};

TEST_F(PlanFiles, ServeTheCallsThatTheyAreFor) {
  const std::string ring = write("ring.json", to_json(generate("ring", Collective::kAllReduce, 4)));
  const std::string chain =
      write("chain.json", to_json(generate("chain", Collective::kBroadcast, 4, 2)));
  const OwnPlans own = read_plan_files(ring + ":" + chain);
  ASSERT_EQ(own.size(), 2);
  EXPECT_EQ(names_of(own, 4), own[0]->algorithm() + "," + own[1]->algorithm());
  EXPECT_EQ(names_of(own, 3), "");
  Planner planner(0, std::make_shared<Fabric>(Fabric::uniform(4, 1, 1e9)), "sra", own);
  const auto chosen = [&](const CallShape& shape) {
    return without_digest(planner.choose(shape).plan->algorithm);
  };
  EXPECT_EQ(chosen({Collective::kAllReduce, 1 << 20}), "file:ring");
  EXPECT_EQ(chosen({Collective::kAllReduce, 4}), "file:ring");
  EXPECT_EQ(chosen({Collective::kBroadcast, 1 << 20, 2}), "file:chain");
  EXPECT_NE(chosen({Collective::kBroadcast, 1 << 20, 1}), "file:chain");
  EXPECT_EQ(chosen({Collective::kReduceScatter, 1 << 20}), "sra");
  // Sums of bf16 must be rounded once.
  EXPECT_EQ(chosen({Collective::kAllReduce, 1 << 20, -1, true}), "sra");
  EXPECT_EQ(chosen({.collective = Collective::kAllReduce, .bytes = 64, .algorithms = "direct"}),
            "direct");
  EXPECT_EQ(without_digest(planner.explain({Collective::kAllReduce, 1 << 20})[0].algorithm),
            "file:ring");
}

TEST_F(PlanFiles, BadOnesAreNamed) {
  const auto complain = [](const std::string& list) -> std::string {
    try {
      read_plan_files(list);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const std::string text = to_json(generate("ring", Collective::kAllReduce, 4));
  const std::string good = write("good.json", text);
  const std::string bad = write("bad.json", replaced(text, "\"to\":1", "\"to\":2"));
  EXPECT_EQ(complain(""), "");
  EXPECT_NE(complain("/nowhere.json").find("cannot read '/nowhere.json'"), std::string::npos);
  EXPECT_EQ(complain(bad).find("Q7X2_PLAN: " + bad + ": bad Plan: all_reduce file:ring@"), 0);
  EXPECT_NE(complain(good + ":" + good).find("an earlier file is for the same calls"),
            std::string::npos);
}

}  // namespace
}  // namespace q7x2
