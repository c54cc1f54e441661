#include "plan/ir/schedule.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/digest.h"
#include "base/error.h"

namespace q7x2 {

Contract Contract::of(const ScheduleRequest& request) {
  std::vector<int> all(static_cast<size_t>(request.world_size));
  std::iota(all.begin(), all.end(), 0);
  Contract contract{all, all, request.world_size};
  const bool from_one =
      request.collective == Collective::kBroadcast || request.collective == Collective::kScatter;
  if (from_one) contract.contributors = {request.root};
  if (is_rooted(request.collective) && !from_one) contract.receivers = {request.root};
  contract.quorum = static_cast<int>(contract.contributors.size());
  return contract;
}

Schedule::Schedule(const ScheduleRequest& request, const std::string& algorithm,
                   std::vector<uint32_t> part_weights)
    : contract_(Contract::of(request)) {
  header_.collective = request.collective;
  header_.algorithm = algorithm;
  if (request.parameter > 0) header_.algorithm += ":" + std::to_string(request.parameter);
  header_.world_size = request.world_size;
  header_.root = request.root;
  if (!is_flat(request.collective)) return;
  header_.part_prefix.push_back(0);
  for (const uint32_t weight : part_weights) {
    header_.part_prefix.push_back(header_.part_prefix.back() + weight);
  }
  header_.part_weights = std::move(part_weights);
}

void Schedule::add_round(Round round) {
  const bool is_empty = round.edges.empty() && round.crosses.empty();
  if (!is_empty && round.repeats > 0) rounds_.push_back(std::move(round));
}

uint64_t Schedule::digest() const {
  Digest digest;
  digest.add(static_cast<uint64_t>(collective()));
  digest.add(algorithm());
  digest.add(static_cast<uint64_t>(edges()));
  digest.add(static_cast<uint64_t>(world_size()));
  if (header_.helpers > 0) digest.add(static_cast<uint64_t>(header_.helpers));
  digest.add(static_cast<uint64_t>(root()));
  digest.add_all(part_weights());
  digest.add_all(contract_.contributors);
  digest.add_all(contract_.receivers);
  for (const Round& round : rounds_) {
    digest.add(static_cast<uint64_t>(round.repeats));
    digest.add(uint64_t{round.folds} | static_cast<uint64_t>(round.coded) << 1);
    for (const Edge& edge : round.edges) {
      digest.add(static_cast<uint64_t>(edge.from) << 32 | static_cast<uint64_t>(edge.to));
      digest.add(edge.messages);
    }
    for (const Cross& cross : round.crosses) {
      digest.add_all(*cross.from);
      digest.add_all(*cross.to);
      digest.add(cross.messages);
    }
  }
  return digest.value();
}

uint64_t Schedule::plans_digest() const {
  Digest digest;
  const auto add = [&digest](const Block& block) {
    digest.add(static_cast<uint64_t>(block.space) << 32 | block.index);
  };
  digest.add(static_cast<uint64_t>(edges()));
  digest.add_all(part_weights());
  int before = -1;
  for (const int rank : {0, world_size() / 2, num_members() - 1}) {
    if (std::exchange(before, rank) == rank) continue;
    const Plan plan = project(rank);
    digest.add_all(plan.successors);
    for (const Op& op : plan.ops) {
      digest.add(static_cast<uint64_t>(op.kind) | uint64_t{op.is_final} << 8 |
                 uint64_t{op.takes_residual} << 9 | uint64_t{op.message} << 16);
      digest.add(static_cast<uint64_t>(op.peer));
      digest.add(op.num_successors);
      add(op.destination);
      add(op.length_of);
      for (const Block& source : plan.sources_of(op)) add(source);
    }
  }
  return digest.value();
}

void Schedule::set_coding(Edges edges, int blocks) {
  header_.edges = edges;
  header_.takes_residuals = true;
  turn_ = {};  // the set of coded edges need not be symmetric under the turn
  header_.rounds_once = header_.rounds_once && edges == Edges::kNone;
  coding_blocks_ = blocks;
}

Plan Schedule::header(int rank) const {
  if (rank < 0 || rank >= num_members()) {
    throw Error(ErrorCode::kInvalidArgument, "invalid rank " + std::to_string(rank) +
                                                 " in a group of " + std::to_string(world_size()));
  }
  Plan plan = header_;
  plan.rank = rank;
  return plan;
}

Plan Schedule::project(int rank) const {
  PlanBuilder builder(header(rank));
  program_(builder, rank);
  return builder.build();
}

std::vector<Plan> Schedule::project_all() const {
  std::vector<Plan> plans;
  for (int rank = 0; rank < num_members(); ++rank) plans.push_back(project(rank));
  return plans;
}

std::vector<uint32_t> equal_parts(int n) {
  return std::vector<uint32_t>(static_cast<size_t>(n), 1);
}

Team team_of(std::vector<int> ranks) {
  return std::make_shared<const std::vector<int>>(std::move(ranks));
}

std::vector<Round> backwards(std::vector<Round> rounds, double contributions) {
  std::ranges::reverse(rounds);
  for (Round& round : rounds) {
    for (Edge& edge : round.edges) std::swap(edge.from, edge.to);
    for (Cross& cross : round.crosses) std::swap(cross.from, cross.to);
    round.folds = false;
    round.same_data = true;
    round.contributions = contributions;
  }
  return rounds;
}

}  // namespace q7x2
