// The part of ScheduleSearch that decides which algorithms, parameters and coded edges may serve a
// call.
#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "plan/choose/schedule_search.h"
#include "plan/ir/coding_pass.h"

namespace q7x2 {

void ScheduleSearch::find_variants(const std::vector<AlgorithmName>& wishes) {
  const ScheduleRequest request{shape_.collective, site_.fabric.world_size(), shape_.root,
                                &site_.fabric};
  for (const Generator& generator : generators()) {
    if (!generator.applies(request)) continue;
    const std::vector<int> parameters =
        generator.parameters == nullptr ? std::vector{0} : generator.parameters(request);
    for (const AlgorithmName& wish : wishes) check_parameter(wish, generator, parameters);
    for (const int parameter : parameters) {
      const bool wished =
          wishes.empty() || std::ranges::any_of(wishes, [&](const AlgorithmName& wish) {
            return wish.matches(generator.name, parameter);
          });
      if (!wished) continue;
      for (const EdgeCoding& edges : edges_) {
        Variant variant{.generator = &generator, .parameter = parameter, .edges = edges};
        if (is_allowed(variant)) variants_.push_back(std::move(variant));
      }
    }
  }
}

ScheduleRequest ScheduleSearch::request_of(const Variant& variant) const {
  ScheduleRequest request{shape_.collective, site_.fabric.world_size(), shape_.root, &site_.fabric,
                          variant.parameter};
  request.wants_owners = variant.edges.any();
  return request;
}

bool ScheduleSearch::is_allowed(const Variant& variant) const {
  const Generator& generator = *variant.generator;
  // Servers do not support codecs.
  if (!shape_.codec.empty() && !site_.fabric.servers.empty() &&
      find_schedule_(generator, request_of(variant))->num_members() > site_.fabric.world_size()) {
    return false;
  }
  if (!variant.edges.any()) {
    return !shape_.wide_accumulation || !is_reduction(shape_.collective) || generator.rounds_once;
  }
  if (!generator.may_code(variant.edges)) return false;
  const auto schedule = find_schedule_(generator, request_of(variant));
  if (shape_.sums_by_owners && shape_.collective == Collective::kAllReduce &&
      !codes_results(*schedule, variant.edges)) {
    return false;
  }
  return shape_.exact_sums || encodings_on_the_way(*schedule, variant.edges) <= 1;
}

void ScheduleSearch::check_parameter(const AlgorithmName& wish, const Generator& generator,
                                     const std::vector<int>& parameters) const {
  // Without servers there are no valid parameters. Calls that name servers then choose freely.
  if (wish.name != generator.name || !wish.parameter || parameters.empty() ||
      std::count(parameters.begin(), parameters.end(), *wish.parameter) > 0) {
    return;
  }
  std::string message = "invalid algorithm '" + generator.full_name(*wish.parameter) + "' for " +
                        to_string(shape_.collective) + " by " +
                        std::to_string(site_.fabric.world_size()) + " ranks: expected ";
  const char* separator = "";
  for (const int parameter : parameters) {
    message.append(std::exchange(separator, ", ")).append(generator.full_name(parameter));
  }
  throw Error(ErrorCode::kInvalidArgument, message);
}

std::string ScheduleSearch::name_of(const Variant& variant) {
  return variant.own ? variant.own->algorithm() : variant.generator->full_name(variant.parameter);
}

std::shared_ptr<const Schedule> ScheduleSearch::schedule_of(const Variant& variant) const {
  if (variant.own) return variant.own;
  auto schedule = find_schedule_(*variant.generator, request_of(variant));
  if (shape_.codec.empty()) return schedule;
  return std::make_shared<const Schedule>(code(*schedule, variant.edges));
}

std::shared_ptr<const Schedule> ScheduleSearch::schedule(const std::string& algorithm,
                                                         Edges edges) const {
  for (const Variant& variant : variants_) {
    if (name_of(variant) == algorithm && variant.edges.edges() == edges) {
      return schedule_of(variant);
    }
  }
  return nullptr;
}

PricedSchedule& ScheduleSearch::price(Variant& variant) {
  if (!variant.priced) {
    variant.priced = std::make_shared<PricedSchedule>(schedule_of(variant), site_, coding_,
                                                      shape_.bytes == CallShape::kUneven);
  }
  return *variant.priced;
}

}  // namespace q7x2
