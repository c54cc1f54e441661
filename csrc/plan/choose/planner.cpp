#include "plan/choose/planner.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>
#include <set>
#include <utility>

#include "base/error.h"
#include "plan/choose/schedule_search.h"
#ifndef NDEBUG
#include "plan/check/checker.h"
#endif

namespace q7x2 {
namespace {

/// Limits of the number of ops, of all ranks, that are simulated: for a choice, which takes about
/// 10 ms, and for an explanation.
constexpr double kOpsForAChoice = 40e3;
constexpr double kOpsToExplain = 4e6;
/// The error of the model: nine of ten calls between hosts take the predicted time within this
/// share (docs/planner.md, "How far off it is"). The error of long calls is smaller: their time
/// follows from the rates, which the model knows better than scheduling and latencies.
constexpr double kError = 0.16;
constexpr double kErrorOfLong = 0.06;
constexpr double kLongSeconds = 5e-3;
/// The number of choices and Schedules that are remembered.
constexpr size_t kMostChoices = 1024;
constexpr size_t kMostSchedules = 64;
#ifndef NDEBUG
constexpr int kMaxCheckedRanks = 32;
#endif

/// A prediction of up to this many times the best one may really be as fast: the best call may take
/// longer by the error, and the other one be faster by it.
double within_error(double best_seconds) {
  const double error = best_seconds < kLongSeconds ? kError : kErrorOfLong;
  return (1 + error) / (1 - error);
}

}  // namespace

CallKey key_of(const CallShape& shape) {
  return {shape.collective,
          shape.root,
          shape.wide_accumulation,
          size_class(shape.bytes),
          shape.algorithms,
          shape.is_direct,
          shape.codec,
          shape.dtype,
          shape.edges};
}

Planner::Planner(int rank, std::shared_ptr<const Fabric> fabric, const std::string& forced,
                 OwnPlans own)
    : rank_(rank),
      forced_(parse_algorithms(forced)),
      own_(std::move(own)),
      fabric_(std::move(fabric)),
      choices_(kMostChoices),
      schedules_(kMostSchedules) {
  fabric_->validate();
  site_ = std::make_shared<const Site>(*fabric_);
  if (rank < 0 || rank >= site_->members.world_size()) {
    throw Error(ErrorCode::kInvalidArgument, "invalid rank " + std::to_string(rank) +
                                                 " in a group of " +
                                                 std::to_string(fabric_->world_size()));
  }
}

void Planner::check_root(const CallShape& shape) const {
  if (is_rooted(shape.collective) && (shape.root < 0 || shape.root >= fabric_->world_size())) {
    throw Error(ErrorCode::kInvalidArgument, std::string(to_string(shape.collective)) +
                                                 ": invalid root rank " +
                                                 std::to_string(shape.root) + ", expected 0 ... " +
                                                 std::to_string(fabric_->world_size() - 1));
  }
}

void Planner::check(const CallShape& shape) const {
  const std::lock_guard lock(mutex_);
  check_root(shape);
  search(shape);
}

std::shared_ptr<const Schedule> Planner::schedule(const CallShape& shape,
                                                  const std::string& algorithm, Edges edges) const {
  const std::lock_guard lock(mutex_);
  check_root(shape);
  return search(shape, {}).schedule(algorithm, edges);
}

const Site& Planner::site_for(const CallShape& shape) const {
  if (!shape.is_direct) return *site_;
  if (!device_site_) {
    device_fabric_ = std::make_shared<const Fabric>(fabric_->of_devices());
    device_site_ = std::make_shared<const Site>(*device_fabric_);
  }
  return *device_site_;
}

std::shared_ptr<const Schedule> Planner::own_for(const CallShape& shape) const {
  if (!shape.algorithms.empty() || !shape.codec.empty()) return nullptr;
  auto own = own_plan_for(own_, shape.collective, fabric_->world_size(), shape.root);
  const bool rounds_once = own && own->header(0).rounds_once;
  if (shape.wide_accumulation && is_reduction(shape.collective) && !rounds_once) return nullptr;
  return own;
}

ScheduleSearch Planner::search(const CallShape& shape) const {
  return search(shape, shape.algorithms.empty() ? forced_ : parse_algorithms(shape.algorithms));
}

ScheduleSearch Planner::search(const CallShape& shape,
                               const std::vector<AlgorithmName>& wishes) const {
  return {
      shape, site_for(shape), wishes,
      [this](const Generator& generator, const ScheduleRequest& request) {
        const ScheduleKey key{&generator, request.parameter, request.root, request.wants_owners};
        if (const auto* known = schedules_.find(key)) return *known;
        return schedules_.add(key, std::make_shared<Schedule>(generator.generate(request)));
      },
      own_for(shape)};
}

std::vector<Rating> Planner::ratings(const CallShape& shape) const {
  check_root(shape);
  ScheduleSearch search = this->search(shape);
  std::vector<Rating> ratings = search.measured();
  if (ratings.empty()) ratings = search.predicted(kOpsForAChoice);
#ifndef NDEBUG
  if (fabric_->world_size() <= kMaxCheckedRanks) {
    check_schedule(ratings.front().priced->schedule());
  }
#endif
  return ratings;
}

Choice Planner::choose(const CallShape& shape) {
  const std::lock_guard lock(mutex_);
  const CallKey key = key_of(shape);
  if (const Choice* known = choices_.find(key)) return *known;
  const Rating best = ratings(shape).front();
  return choices_.add(key,
                      {std::make_shared<const Plan>(best.priced->schedule().project(rank_)),
                       best.cut.slice_bytes, best.cut.part_bytes, best.cut.window, best.seconds()});
}

std::vector<Proposal> Planner::propose(const CallShape& shape, size_t most) const {
  const std::lock_guard lock(mutex_);
  const std::vector<Rating> ratings = this->ratings(shape);
  const Rating& best = ratings.front();
  const double near = within_error(best.seconds()) * best.seconds();
  const bool is_settled = best.measured || !forced_.empty() || !shape.algorithms.empty();
  std::vector<Proposal> proposals;
  std::set<std::string> names;
  // Nearly all algorithms make equal Plans for two ranks, and some do for more.
  std::set<uint64_t> plans;
  for (const Rating& rating : ratings) {
    if (proposals.size() == (is_settled ? 1 : most)) break;
    const Schedule& schedule = rating.priced->schedule();
    const std::string& algorithm = schedule.algorithm();
    if (rating.seconds() > near || !names.insert(algorithm.substr(0, algorithm.find(':'))).second ||
        !plans.insert(schedule.plans_digest()).second) {
      continue;
    }
    proposals.push_back({.algorithm = algorithm,
                         .edges = schedule.edges(),
                         .slice_bytes = rating.cut.slice_bytes,
                         .part_bytes = rating.cut.part_bytes,
                         .window = rating.cut.window,
                         .seconds = rating.seconds(),
                         .digest = schedule.digest()});
  }
  return proposals;
}

std::vector<Candidate> Planner::explain(const CallShape& shape, bool simulate) const {
  const std::lock_guard lock(mutex_);
  check_root(shape);
  ScheduleSearch search = this->search(shape);
  std::vector<Rating> ratings = search.measured();
  std::ranges::move(
      search.predicted(simulate ? std::numeric_limits<double>::infinity() : kOpsToExplain),
      std::back_inserter(ratings));
  if (simulate) ratings.erase(ratings.begin() + 1, ratings.end());
  for (Rating& rating : ratings) {
    search.resize(rating);
    if (shape.bytes == CallShape::kUneven) continue;
    rating.prediction.seconds_after_silence =
        rating.priced->simulate_after_silence(shape.bytes, rating.cut);
  }
  std::vector<Candidate> candidates;
  for (Rating& rating : ratings) {
    candidates.push_back({rating.priced->name(), rating.priced->schedule().edges(),
                          rating.cut.slice_bytes, rating.cut.window, std::move(rating.prediction),
                          rating.is_simulated, rating.measured,
                          rating.priced->schedule().plans_digest()});
  }
  return candidates;
}

std::shared_ptr<const Fabric> Planner::fabric() const {
  const std::lock_guard lock(mutex_);
  return fabric_;
}

void Planner::set_fabric(std::shared_ptr<const Fabric> fabric) {
  fabric->validate();
  const std::lock_guard lock(mutex_);
  if (fabric->world_size() != fabric_->world_size()) {
    throw Error(ErrorCode::kInvalidArgument, "a fabric of " + std::to_string(fabric->world_size()) +
                                                 " ranks for a group of " +
                                                 std::to_string(fabric_->world_size()));
  }
  fabric_ = std::move(fabric);
  site_ = std::make_shared<const Site>(*fabric_);
  device_site_.reset();
  choices_.clear();
  schedules_.clear();
}

}  // namespace q7x2
