#include "plan/files/plan_json.h"

#include <vector>

#include "base/error.h"
#include "fabric/json_fields.h"
#include "plan/files/plan_json_format.h"

namespace q7x2 {
namespace {

std::string text_of(const Block& block) {
  for (const auto& [name, space] : kSpaceNames) {
    if (block.space == space) return std::string(name) + "[" + std::to_string(block.index) + "]";
  }
  throw Error(ErrorCode::kInvalidArgument, "Plans with coded blocks have no JSON");
}

Json op_json(const Plan& plan, const Op& op, const std::vector<uint32_t>& after) {
  const auto sources = plan.sources_of(op);
  Json json = Json::object();
  switch (op.kind) {
    case OpKind::kSend:
      json["send"] = text_of(sources[0]);
      json["to"] = op.peer;
      break;
    case OpKind::kRecv:
      json["recv"] = text_of(op.destination);
      json["from"] = op.peer;
      break;
    case OpKind::kCopy:
      json["copy"] = text_of(sources[0]);
      json["into"] = text_of(op.destination);
      break;
    case OpKind::kReduce:
      json["reduce"] = Json::array();
      for (const Block& source : sources) json["reduce"].push_back(text_of(source));
      json["into"] = text_of(op.destination);
      if (op.is_final) json["final"] = true;
      break;
  }
  if (op.peer >= 0) json["message"] = op.message;
  if (usual_length(op.kind, sources, op.destination) != op.length_of) {
    json["length"] = text_of(op.length_of);
  }
  if (!after.empty()) json["after"] = after;
  return json;
}

std::string plan_text(const Plan& plan) {
  std::vector<std::vector<uint32_t>> after(plan.ops.size());
  for (uint32_t id = 0; id < plan.ops.size(); ++id) {
    for (const uint32_t successor : plan.successors_of(plan.ops[id]))
      after[successor].push_back(id);
  }
  std::string text = "    [";
  for (size_t id = 0; id < plan.ops.size(); ++id) {
    text += (id == 0 ? "\n      " : ",\n      ") + op_json(plan, plan.ops[id], after[id]).dump();
  }
  return text + (plan.ops.empty() ? "]" : "\n    ]");
}

}  // namespace

std::string to_json(const Schedule& schedule) {
  if (schedule.num_members() > schedule.world_size()) {
    throw Error(ErrorCode::kInvalidArgument,
                schedule.algorithm() + " needs servers: a file has Plans of ranks only");
  }
  Json head{{"format", kPlanFormat},
            {"collective", to_string(schedule.collective())},
            {"ranks", schedule.world_size()}};
  if (schedule.root() >= 0) head["root"] = schedule.root();
  head["algorithm"] = schedule.algorithm();
  if (is_flat(schedule.collective())) head["part_weights"] = schedule.part_weights();
  const Contract& contract = schedule.contract();
  head["contract"] = {{"contributors", contract.contributors},
                      {"receivers", contract.receivers},
                      {"quorum", contract.quorum}};
  head["rounds_once"] = schedule.header(0).rounds_once;
  std::string text = "{\n";
  for (const auto& [name, value] : head.items()) {
    text += "  " + Json(name).dump() + ": " + value.dump() + ",\n";
  }
  text += "  \"plans\": [\n";
  for (int rank = 0; rank < schedule.world_size(); ++rank) {
    text += (rank == 0 ? "" : ",\n") + plan_text(schedule.project(rank));
  }
  return text + "\n  ]\n}\n";
}

}  // namespace q7x2
