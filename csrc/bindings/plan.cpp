#include "bindings/plan.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/stl.h>

#include "backend/process_group.h"
#include "base/error.h"
#include "bindings/value_error.h"
#include "executor/collective/plan_call.h"
#include "executor/residence/device_coded.h"
#include "executor/residence/selected.h"
#include "fabric/fabric.h"
#include "fabric/json.h"
#include "kernels/codec/codec.h"
#include "ledger/rate_history.h"
#include "plan/algorithms/generators.h"
#include "plan/choose/planner.h"
#include "plan/cost/simulator.h"
#include "plan/files/plan_files.h"
#include "plan/files/plan_json.h"
#include "plan/ir/coding_pass.h"
#include "plan/ir/plan.h"

namespace q7x2 {
namespace {

namespace py = pybind11;
using py::literals::operator""_a;

[[noreturn]] void invalid(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, what);
}

/// "aggregator:2" as ("aggregator", 2).
std::pair<std::string, std::optional<int>> split(const std::string& algorithm) {
  const size_t colon = algorithm.find(':');
  if (colon == std::string::npos) return {algorithm, std::nullopt};
  const std::string digits = algorithm.substr(colon + 1);
  if (digits.empty() || digits.size() > 6 ||
      digits.find_first_not_of("0123456789") != std::string::npos) {
    invalid("invalid algorithm '" + algorithm + "': expected a number after the colon");
  }
  return {algorithm.substr(0, colon), std::stoi(digits)};
}

const Generator& find_generator(const std::string& collective, const std::string& name) {
  std::set<std::string> names;
  for (const Generator& generator : generators()) {
    if (to_string(generator.collective) != collective) continue;
    if (generator.name == name) return generator;
    names.insert(generator.name);
  }
  std::string known;
  for (const std::string& each : names) known += (known.empty() ? "" : ", ") + each;
  invalid(names.empty() ? "no collective is called '" + collective + "'"
                        : "no algorithm for " + collective + " is called '" + name +
                              "': expected one of " + known);
}

/// `wished`, or the largest parameter.
int choose_parameter(const Generator& generator, const ScheduleRequest& request,
                     std::optional<int> wished) {
  if (generator.parameters == nullptr) {
    if (wished) invalid(generator.name + " takes no parameter");
    return 0;
  }
  const std::vector<int> offered = generator.parameters(request);
  if (!wished) return offered.back();
  if (std::ranges::find(offered, *wished) != offered.end()) return *wished;
  std::string known;
  for (const int each : offered) known += (known.empty() ? "" : ", ") + std::to_string(each);
  invalid(generator.name + " does not take " + std::to_string(*wished) + " here: expected one of " +
          known);
}

const char* to_string(OpKind kind) {
  switch (kind) {
    case OpKind::kSend:
      return "send";
    case OpKind::kRecv:
      return "recv";
    case OpKind::kCopy:
      return "copy";
    case OpKind::kReduce:
      return "reduce";
  }
  return "";
}

py::dict to_dict(const Plan& plan) {
  std::vector<std::vector<size_t>> after(plan.ops.size());
  for (size_t id = 0; id < plan.ops.size(); ++id) {
    for (const uint32_t successor : plan.successors_of(plan.ops[id]))
      after[successor].push_back(id);
  }
  py::list ops;
  for (size_t id = 0; id < plan.ops.size(); ++id) {
    const Op& op = plan.ops[id];
    ops.append(py::dict("kind"_a = to_string(op.kind), "peer"_a = op.peer, "message"_a = op.message,
                        "part"_a = op.length_of.index, "is_final"_a = op.is_final,
                        "after"_a = after[id], "text"_a = q7x2::to_string(plan, op)));
  }
  return py::dict("algorithm"_a = plan.algorithm, "rank"_a = plan.rank,
                  "world_size"_a = plan.world_size, "root"_a = plan.root,
                  "part_weights"_a = plan.part_weights, "scratch_blocks"_a = plan.num_scratch,
                  "ops"_a = ops);
}

Schedule make_schedule(const std::string& collective, const std::string& algorithm,
                       std::optional<int> ranks, int root,
                       const std::optional<std::string>& fabric_json) {
  const auto [name, parameter] = split(algorithm);
  const Generator& generator = find_generator(collective, name);
  std::optional<Fabric> fabric;
  if (fabric_json) fabric = fabric_from_json(*fabric_json);
  if (!ranks && !fabric) invalid("neither the number of ranks nor a fabric is given");
  const int world_size = ranks ? *ranks : fabric->world_size();
  if (world_size < 1) invalid("a group has at least one rank, got " + std::to_string(world_size));
  if (fabric && fabric->world_size() != world_size) {
    invalid("the fabric has " + std::to_string(fabric->world_size()) + " ranks, expected " +
            std::to_string(world_size));
  }
  if (is_rooted(generator.collective) ? root < 0 || root >= world_size : root != -1) {
    invalid(is_rooted(generator.collective)
                ? "invalid root " + std::to_string(root) + " in a group of " +
                      std::to_string(world_size)
                : collective + " has no root: expected -1, got " + std::to_string(root));
  }
  ScheduleRequest request{generator.collective, world_size, root, fabric ? &*fabric : nullptr};
  if (!generator.applies(request)) {
    invalid(name + " has nothing to offer for " + std::to_string(world_size) + " ranks " +
            (fabric ? "on this fabric" : "without a fabric"));
  }
  request.parameter = choose_parameter(generator, request, parameter);
  return generator.generate(request);
}

py::list make_plans(const std::string& collective, const std::string& algorithm,
                    std::optional<int> ranks, int root,
                    const std::optional<std::string>& fabric_json) {
  const Schedule schedule = make_schedule(collective, algorithm, ranks, root, fabric_json);
  py::list plans;
  for (int rank = 0; rank < schedule.num_members(); ++rank) {
    plans.append(to_dict(schedule.project(rank)));
  }
  return plans;
}

std::string export_plan(const std::string& collective, const std::string& algorithm,
                        std::optional<int> ranks, int root,
                        const std::optional<std::string>& fabric_json) {
  return to_json(make_schedule(collective, algorithm, ranks, root, fabric_json));
}

/// Whether a device can code a candidate's call, or select what is sent: checked for rank 0, with a
/// residual if the codec uses one.
bool is_for_device(const Candidate& candidate, const CallShape& shape, const Codec* codec,
                   const Fabric& fabric) {
  if (codec == nullptr || candidate.edges == Edges::kNone) return false;
  const auto [name, parameter] = split(candidate.algorithm);
  const Generator& generator = find_generator(to_string(shape.collective), name);
  ScheduleRequest request{shape.collective, fabric.world_size(), shape.root, &fabric};
  request.parameter = choose_parameter(generator, request, parameter);
  const EdgeCoding edges(candidate.edges, fabric.world_size(), &fabric);
  const Plan plan = code(generator.generate(request), edges).project(0);
  return runs_on_device(plan, *codec, DType::kFloat32,
                        /*has_errors=*/codec->traits().keeps_error) ||
         selects_on_device(plan, *codec, DType::kFloat32);
}

/// The figures of a Schedule that was proved correct.
py::dict check_plan(const std::string& text) {
  const Schedule schedule = schedule_from_json(text);
  size_t ops = 0;
  size_t messages = 0;
  size_t scratch = 0;
  size_t stages = 0;
  for (const Plan& plan : schedule.project_all()) {
    ops += plan.ops.size();
    messages += static_cast<size_t>(std::ranges::count(plan.ops, OpKind::kSend, &Op::kind));
    scratch = std::max<size_t>(scratch, plan.num_scratch);
    stages = std::max<size_t>(stages, plan.num_stages);
  }
  const Contract& contract = schedule.contract();
  return py::dict(
      "algorithm"_a = schedule.algorithm(), "collective"_a = to_string(schedule.collective()),
      "ranks"_a = schedule.world_size(), "root"_a = schedule.root(), "ops"_a = ops,
      "messages"_a = messages, "scratch_blocks"_a = scratch, "stages"_a = stages,
      "steps"_a = schedule.rounds().size(), "rounds_once"_a = schedule.header(0).rounds_once,
      "contributors"_a = contract.contributors, "receivers"_a = contract.receivers,
      "quorum"_a = contract.quorum);
}

Collective parse_collective(const std::string& name) {
  for (const Generator& generator : generators()) {
    if (to_string(generator.collective) == name) return generator.collective;
  }
  invalid("no collective is called '" + name + "'");
}

py::list loads_of(const Prediction& prediction) {
  py::list loads;
  for (const Prediction::Load& load : prediction.loads) {
    loads.append(py::dict("name"_a = load.name, "bytes"_a = load.bytes, "busy"_a = load.busy));
  }
  return loads;
}

py::list explain(const std::string& collective, size_t bytes, const std::string& fabric_json,
                 int root, const std::string& algorithms, bool wide_accumulation,
                 const std::string& codec_name, bool simulate, const std::string& edges) {
  std::vector<Candidate> candidates;
  std::vector<bool> on_device;
  {
    const py::gil_scoped_release no_gil;
    const auto fabric = std::make_shared<Fabric>(fabric_from_json(fabric_json));
    const Planner planner(0, fabric, algorithms, plan_files_of_environment());
    CallShape shape{parse_collective(collective), bytes, root, wide_accumulation};
    std::shared_ptr<const Codec> codec;
    if (!codec_name.empty()) {
      codec = Codec::make(codec_name);
      add_codec(shape, *codec, DType::kFloat32, parse_edge_wish(edges));
    }
    candidates = planner.explain(shape, simulate);
    for (const Candidate& each : candidates) {
      on_device.push_back(is_for_device(each, shape, codec.get(), *fabric));
    }
  }
  py::list list;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const Candidate& each = candidates[i];
    const Prediction& prediction = each.prediction;
    list.append(py::dict(
        "algorithm"_a = each.algorithm, "edges"_a = to_string(each.edges),
        "on_device"_a = static_cast<bool>(on_device[i]), "slice_bytes"_a = each.slice_bytes,
        "window"_a = each.window, "measured"_a = each.measured, "simulated"_a = each.is_simulated,
        "seconds"_a = prediction.seconds,
        "seconds_after_silence"_a = prediction.seconds_after_silence,
        "first_slice_seconds"_a = prediction.first_slice_seconds, "loads"_a = loads_of(prediction),
        "plans"_a = each.plans,
        "bottleneck"_a = prediction.bottleneck < 0 ? py::object(py::none())
                                                   : py::object(py::int_(prediction.bottleneck))));
  }
  return list;
}

py::dict choose(const std::string& collective, size_t bytes, const std::string& fabric_json,
                int root, int rank) {
  const auto fabric = std::make_shared<Fabric>(fabric_from_json(fabric_json));
  Planner planner(rank, fabric, "");
  const CallShape shape{parse_collective(collective), bytes, root};
  const auto begin = std::chrono::steady_clock::now();
  const Choice choice = planner.choose(shape);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  return py::dict("algorithm"_a = choice.plan->algorithm, "slice_bytes"_a = choice.slice_bytes,
                  "part_bytes"_a = choice.part_bytes, "window"_a = choice.window,
                  "seconds"_a = choice.seconds, "ops"_a = choice.plan->ops.size(),
                  "planning_seconds"_a = took.count());
}

py::dict to_dict(const Refinement::Event& event, const std::vector<Proposal>& proposals) {
  py::list choices;
  for (const size_t choice : event.choices) choices.append(proposals[choice].algorithm);
  py::dict measured;
  for (size_t i = 0; i < proposals.size(); ++i) {
    const Refinement::Figure& figure = event.figures[i];
    if (figure.nanoseconds <= 0) continue;
    measured[py::str(proposals[i].algorithm)] =
        py::dict("seconds"_a = static_cast<double>(figure.nanoseconds) * 1e-9,
                 "noise"_a = static_cast<double>(figure.noise) * 1e-3);
  }
  return py::dict("call"_a = event.call, "choices"_a = choices, "measured"_a = measured);
}

py::list candidates_of(const PlanCache::Revision& revision) {
  py::list candidates;
  for (const Proposal& each : revision.proposals) {
    candidates.append(py::dict("algorithm"_a = each.algorithm, "edges"_a = to_string(each.edges),
                               "slice_bytes"_a = each.slice_bytes, "window"_a = each.window,
                               "predicted"_a = each.seconds));
  }
  return candidates;
}

py::list plan_history(const ProcessGroupQ7x2& group) {
  std::vector<PlanCache::Record> records;
  {
    const py::gil_scoped_release no_gil;
    records = group.plan_records();
  }
  py::list list;
  for (const PlanCache::Record& record : records) {
    py::list events;
    for (const PlanCache::Revision& revision : record.revisions) {
      for (const Refinement::Event& event : revision.events) {
        events.append(to_dict(event, revision.proposals));
      }
    }
    py::list earlier;
    for (size_t i = 0; i + 1 < record.revisions.size(); ++i) {
      earlier.append(candidates_of(record.revisions[i]));
    }
    py::list changes;
    for (const PlanCache::Revision& revision : record.revisions) {
      if (revision.reason.empty()) continue;
      changes.append(py::dict("call"_a = revision.events.front().call, "epoch"_a = revision.epoch,
                              "reason"_a = revision.reason));
    }
    const bool is_uneven = record.bytes == CallShape::kUneven;
    list.append(py::dict(
        "collective"_a = to_string(record.collective),
        "bytes"_a = is_uneven ? py::object(py::none()) : py::object(py::int_(record.bytes)),
        "root"_a = record.root, "codec"_a = record.codec, "direct"_a = record.is_direct,
        "calls"_a = record.calls, "candidates"_a = candidates_of(record.revisions.back()),
        "earlier_candidates"_a = earlier, "events"_a = events, "rate_changes"_a = changes));
  }
  return list;
}

py::list timeline(const std::string& collective, size_t bytes, const std::string& fabric_json,
                  int root, const std::string& algorithm, size_t slice_bytes, int window) {
  const Fabric fabric = fabric_from_json(fabric_json);
  const auto [name, parameter] = split(algorithm);
  const Generator& generator = find_generator(collective, name);
  ScheduleRequest request{generator.collective, fabric.world_size(), root, &fabric};
  request.parameter = choose_parameter(generator, request, parameter);
  const std::vector<Plan> plans = generator.generate(request).project_all();
  py::list steps;
  const Prediction run = Simulator(plans, fabric).run({bytes, slice_bytes, window, 0, true});
  for (const Prediction::Step& step : run.timeline) {
    const Op& op = plans[static_cast<size_t>(step.rank)].ops[step.op];
    steps.append(py::dict("rank"_a = step.rank, "slice"_a = step.slice,
                          "kind"_a = to_string(op.kind), "peer"_a = op.peer, "begin"_a = step.begin,
                          "end"_a = step.end));
  }
  return steps;
}

}  // namespace

void bind_plan(py::module_& module) {
  module.def(
      "check_edges",
      [](const std::string& edges) { or_value_error([&] { return parse_edge_wish(edges); }); },
      "edges"_a, "Raises ValueError, which lists the choices, for edges that do not exist.");
  module.def(
      "exchange_algorithms",
      [](std::string algorithms) {
        return or_value_error([&] { return exchange_algorithms_of_thread(std::move(algorithms)); });
      },
      "algorithms"_a,
      "Forces the algorithms of this thread's collectives; returns what was forced before.");
  module.def("make_plans", &make_plans, "collective"_a, "algorithm"_a,
             "world_size"_a = std::nullopt, "root"_a = -1, "fabric"_a = std::nullopt,
             "The Plans of all ranks, then of servers, as plain data.");
  module.def("export_plan", &export_plan, "collective"_a, "algorithm"_a,
             "world_size"_a = std::nullopt, "root"_a = -1, "fabric"_a = std::nullopt,
             "The Plans of all ranks as JSON, for Q7X2_PLAN.");
  module.def(
      "check_plan",
      [](const std::string& text) { return or_value_error([&] { return check_plan(text); }); },
      "text"_a, "Proves the Plans of such a JSON text; returns what they hold.");
  module.def("explain", &explain, "collective"_a, "bytes"_a, "fabric"_a, "root"_a = -1,
             "algorithms"_a = "", "wide_accumulation"_a = false, "codec"_a = "",
             "simulate"_a = false, "edges"_a = "auto",
             "The planner's candidates for a call, the one that is chosen first.");
  module.attr("WORTH_MORE_LOSS") = kWorthMoreLoss;
  module.def("choose", &choose, "collective"_a, "bytes"_a, "fabric"_a, "root"_a = -1, "rank"_a = 0,
             "What a new planner chooses for a call, and how long that takes.");
  module.def(
      "rate_changes",
      [] {
        std::vector<std::pair<int64_t, std::string>> changes;
        for (RateHistory::Change& each : RateHistory::instance().changes()) {
          changes.emplace_back(each.wall_ns, std::move(each.text));
        }
        return changes;
      },
      "The changes of rates that this process has noticed, each with the nanoseconds since 1970.");
  module.def("plan_history", &plan_history, "group"_a,
             "The choices of a group for each kind of call, and how they came about.");
  module.def("timeline", &timeline, "collective"_a, "bytes"_a, "fabric"_a, "root"_a, "algorithm"_a,
             "slice_bytes"_a, "window"_a, "Every op of a simulated call, with its times.");
}

}  // namespace q7x2
