// The built-in link classes, and the choice of Plan, slice and window.
#include "plan/planner.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <set>
#include <sstream>
#include <utility>

#include "base/error.h"
#ifndef NDEBUG
#include "plan/checker.h"
#endif

namespace q7x2 {

namespace {

constexpr size_t kKiB = 1024;
constexpr size_t kMiB = 1024 * kKiB;

/// What a class of links costs, and the pipelining that fits it.
struct LinkClass {
  LinkCost cost;
  /// The longest message. Longer ones do not use the link better; shorter ones start the next step
  /// earlier, and stay in the cache between their arrival and their fold.
  size_t max_part_bytes;
  /// The shortest message worth cutting data into, where alpha is still small beside the transfer.
  size_t min_part_bytes;
  int window;
};

constexpr LinkClass kOneHost = {
    .cost = {.alpha = 1e-6, .overhead = 0.3e-6, .beta = 1 / 5e9, .gamma = 1 / 8e9, .incast = 0},
    .max_part_bytes = 256 * kKiB,
    .min_part_bytes = 32 * kKiB,
    .window = 4,
};
constexpr LinkClass kNetwork = {
    .cost = {.alpha = 30e-6, .overhead = 3e-6, .beta = 1 / 125e6, .gamma = 1 / 8e9, .incast = 0.02},
    .max_part_bytes = 512 * kKiB,
    .min_part_bytes = 64 * kKiB,
    .window = 4,
};

/// All scratch blocks of all slices in progress together.
constexpr size_t kMaxScratchBytes = 32 * kMiB;
/// What all slices in progress together put into shared memory. Two of the largest calls fit.
constexpr size_t kMaxStagedBytes = 8 * kMiB;
/// What an uneven call is taken for: its parts may well be long.
constexpr size_t kUnevenBytes = kMiB;
constexpr size_t kAlignment = 64;
/// Costs that differ by less are equal: rounding must not choose between two names of one thing.
constexpr double kTie = 1e-6;
#ifndef NDEBUG
constexpr int kMaxCheckedRanks = 32;
#endif

size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

size_t divide_up(size_t value, size_t divisor) {
  return (value + divisor - 1) / divisor;
}

bool is_rooted(Collective op) {
  return op == Collective::kReduce || op == Collective::kBroadcast || op == Collective::kGather ||
         op == Collective::kScatter;
}

bool is_reduction(Collective op) {
  return op == Collective::kAllReduce || op == Collective::kReduce ||
         op == Collective::kReduceScatter;
}

size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, substituted}));
    }
  }
  return row[b.size()];
}

/// A name that contains the wrong one, as binomial_tree does tree, beats one that is spelled alike.
std::string nearest(const std::string& wrong, const std::set<std::string>& names) {
  return *std::min_element(names.begin(), names.end(), [&](const auto& a, const auto& b) {
    const auto distance = [&](const std::string& name) {
      const bool contained = !wrong.empty() && name.find(wrong) != std::string::npos;
      return std::pair(!contained, edit_distance(wrong, name));
    };
    return distance(a) < distance(b);
  });
}

std::vector<std::string> parse_names(const std::string& list) {
  std::set<std::string> known;
  for (const Generator& generator : generators()) known.insert(generator.name);

  std::vector<std::string> names;
  if (list.find_first_not_of(" \t") == std::string::npos) return names;
  // A comma at the end leaves an empty name behind, which getline would not report.
  std::istringstream items(list + ",");
  for (std::string item; std::getline(items, item, ',');) {
    const size_t begin = item.find_first_not_of(" \t");
    const size_t end = item.find_last_not_of(" \t");
    const std::string name = begin == std::string::npos ? "" : item.substr(begin, end - begin + 1);
    if (!known.contains(name)) {
      std::string message = "unknown algorithm '";
      message.append(name).append("' in '").append(list).append("': expected ");
      const char* separator = "";
      for (const std::string& each : known) {
        message.append(std::exchange(separator, ", ")).append(each);
      }
      if (!name.empty())
        message.append("; did you mean '").append(nearest(name, known)).append("'?");
      throw Error(ErrorCode::kInvalidArgument, message);
    }
    names.push_back(name);
  }
  return names;
}

#ifndef NDEBUG
void check_all_ranks(const Generator& generator, PlanRequest request) {
  if (request.world_size > kMaxCheckedRanks) return;
  std::vector<Plan> plans;
  for (request.rank = 0; request.rank < request.world_size; ++request.rank) {
    plans.push_back(generator.generate(request));
  }
  check_plans(plans);
}
#endif

}  // namespace

Planner::Planner(int rank, int world_size, bool one_host, const std::string& forced)
    : rank_(rank), world_size_(world_size), one_host_(one_host), forced_(parse_names(forced)) {
  if (world_size < 1 || rank < 0 || rank >= world_size) {
    throw Error(ErrorCode::kInvalidArgument, "invalid rank " + std::to_string(rank) +
                                                 " in a group of " + std::to_string(world_size));
  }
}

Choice Planner::choose(const CallShape& shape) {
  if (is_rooted(shape.collective) && (shape.root < 0 || shape.root >= world_size_)) {
    throw Error(ErrorCode::kInvalidArgument, std::string(to_string(shape.collective)) +
                                                 ": invalid root rank " +
                                                 std::to_string(shape.root) + ", expected 0 ... " +
                                                 std::to_string(world_size_ - 1));
  }
  // Beyond half of the address space the next power of two does not exist, nor does such a buffer.
  const size_t size_class =
      shape.bytes > CallShape::kUneven / 2 ? shape.bytes : std::bit_ceil(shape.bytes);
  const Key key{shape.collective, shape.root, shape.wide_accumulation, size_class};
  const std::lock_guard lock(mutex_);
  auto found = cache_.find(key);
  if (found == cache_.end()) found = cache_.emplace(key, make_choice(shape, size_class)).first;
  return found->second;
}

const Generator& Planner::pick(const CallShape& shape, size_t size_class) const {
  const LinkCost& link = (one_host_ ? kOneHost : kNetwork).cost;
  const PlanRequest request{shape.collective, rank_, world_size_, shape.root};
  const auto bytes =
      static_cast<double>(shape.bytes == CallShape::kUneven ? kUnevenBytes : size_class);
  const auto cheapest = [&](bool forced_only) {
    const Generator* best = nullptr;
    double best_cost = 0;
    for (const Generator& generator : generators()) {
      if (generator.cost == nullptr || !generator.applies(request)) continue;
      if (shape.wide_accumulation && is_reduction(shape.collective) && !generator.rounds_once) {
        continue;
      }
      if (forced_only && !std::count(forced_.begin(), forced_.end(), generator.name)) continue;
      const double cost = generator.cost(link, bytes, world_size_);
      if (best == nullptr || cost < best_cost * (1 - kTie)) {
        best = &generator;
        best_cost = cost;
      }
    }
    return best;
  };
  const Generator* best = cheapest(true);
  if (best == nullptr) best = cheapest(false);
  if (best == nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string("no algorithm offers ") + to_string(shape.collective) + " for " +
                    std::to_string(world_size_) + " ranks" +
                    (shape.wide_accumulation ? " with one rounding" : ""));
  }
  return *best;
}

// Slices pipeline: k slices of p bytes cost k times alpha, and the first one's way through the
// group about p * beta. With k * p given, the sum is least where p = sqrt(k * p * alpha / beta).
// Everything here follows from the CallShape alone.
Choice Planner::make_choice(const CallShape& shape, size_t size_class) const {
  const LinkClass& link = one_host_ ? kOneHost : kNetwork;
  const Generator& generator = pick(shape, size_class);
  const PlanRequest request{shape.collective, rank_, world_size_, shape.root};
#ifndef NDEBUG
  check_all_ranks(generator, request);
#endif
  Choice choice;
  choice.plan = std::make_shared<const Plan>(generator.generate(request));

  const std::vector<uint32_t>& weights = choice.plan->part_weights;
  const size_t total_weight =
      weights.empty() ? 1 : std::accumulate(weights.begin(), weights.end(), size_t{0});
  const size_t heaviest = weights.empty() ? 1 : *std::max_element(weights.begin(), weights.end());

  const bool uneven = shape.bytes == CallShape::kUneven;
  const size_t longest_part =
      uneven ? link.max_part_bytes : divide_up(size_class, total_weight) * heaviest;
  const auto window = static_cast<size_t>(link.window);
  const auto balanced = static_cast<size_t>(std::sqrt(
      static_cast<double>(longest_part) * (link.cost.alpha + link.cost.overhead) / link.cost.beta));
  const size_t wanted =
      uneven ? link.max_part_bytes : std::clamp(balanced, link.min_part_bytes, link.max_part_bytes);
  const size_t scratch_blocks = std::max<size_t>(choice.plan->num_scratch, 1) * window;
  // A rank sends each part at most twice. What one rank's Plan stages differs from the others'.
  const size_t staged_blocks = 2 * static_cast<size_t>(world_size_) * window;
  const size_t allowed = std::min({wanted, std::max<size_t>(kMaxScratchBytes / scratch_blocks, 1),
                                   std::max<size_t>(kMaxStagedBytes / staged_blocks, 1)});
  // Slices of one length, not many long ones and a rest.
  const size_t slices = std::max<size_t>(divide_up(longest_part, allowed), 1);
  const size_t part_bytes = divide_up(longest_part, slices);
  const size_t unit = round_up(std::max<size_t>(part_bytes / heaviest, 1), kAlignment);
  choice.slice_bytes = unit * total_weight;
  choice.part_bytes = unit * heaviest;
  choice.window = uneven ? link.window
                         : static_cast<int>(std::clamp<size_t>(
                               divide_up(size_class, choice.slice_bytes), 1, window));
  return choice;
}

}  // namespace q7x2
