#include "plan/files/plan_files.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "plan/files/plan_json.h"

namespace q7x2 {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file || !text) {
    throw Error(ErrorCode::kInvalidArgument, "Q7X2_PLAN: cannot read '" + path + "'");
  }
  return std::move(text).str();
}

}  // namespace

OwnPlans read_plan_files(const std::string& list) {
  OwnPlans plans;
  std::istringstream paths(list);
  for (std::string path; std::getline(paths, path, ':');) {
    if (path.empty()) continue;
    const std::string text = read_file(path);
    try {
      plans.push_back(std::make_shared<const Schedule>(schedule_from_json(text)));
    } catch (const Error& error) {
      throw Error(error.code(), "Q7X2_PLAN: " + path + ": " + error.what());
    }
    const Schedule& last = *plans.back();
    if (own_plan_for(plans, last.collective(), last.world_size(), last.root()) != plans.back()) {
      throw Error(ErrorCode::kInvalidArgument, "Q7X2_PLAN: " + path +
                                                   ": an earlier file is for the same calls, " +
                                                   to_string(last.collective()) + " by " +
                                                   std::to_string(last.world_size()) + " ranks");
    }
  }
  return plans;
}

OwnPlans plan_files_of_environment() {
  const char* const list = std::getenv("Q7X2_PLAN");
  return list == nullptr ? OwnPlans{} : read_plan_files(list);
}

std::shared_ptr<const Schedule> own_plan_for(const OwnPlans& plans, Collective collective,
                                             int world_size, int root) {
  const auto found = std::ranges::find_if(plans, [&](const auto& plan) {
    return plan->collective() == collective && plan->world_size() == world_size &&
           plan->root() == root;
  });
  return found == plans.end() ? nullptr : *found;
}

std::string names_of(const OwnPlans& plans, int world_size) {
  std::string names;
  for (const auto& plan : plans) {
    if (plan->world_size() != world_size) continue;
    names += (names.empty() ? "" : ",") + plan->algorithm();
  }
  return names;
}

}  // namespace q7x2
