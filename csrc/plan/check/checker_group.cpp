#include "plan/check/checker_group.h"

#include <string>
#include <utility>

#include "base/error.h"

namespace q7x2::checker {
namespace {

bool are_ranks(const std::vector<int>& ranks, int world_size) {
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= world_size || (i > 0 && ranks[i] <= ranks[i - 1])) return false;
  }
  return true;
}

const Plan& first_of(std::span<const Plan> plans) {
  if (plans.empty()) throw Error(ErrorCode::kInternal, "no Plans to check");
  return plans.front();
}

}  // namespace

CheckedGroup::CheckedGroup(const Plan& header, const Contract& contract)
    : header_(header), contract_(contract), plans_(static_cast<size_t>(header.num_members())) {
  for (const auto& [name, ranks] : {std::pair("contributors", &contract.contributors),
                                    std::pair("receivers", &contract.receivers)}) {
    if (!are_ranks(*ranks, world_size())) {
      fail(std::string("the contract's ") + name + " are not ranks in ascending order");
    }
  }
  contributors_ = RankSet(size(), contract.contributors);
  receivers_ = RankSet(size(), contract.receivers);
  const int most = static_cast<int>(contract.contributors.size());
  if (contract.quorum < 1 || contract.quorum > most) {
    fail("the contract's quorum is " + std::to_string(contract.quorum) + " of " +
         std::to_string(most) + " contributors");
  }
  if (header.helpers < 0 || (header.helpers > 0 && !is_flat(collective()))) {
    fail("only flat collectives have helpers, has " + std::to_string(header.helpers));
  }
  const bool from_root =
      collective() == Collective::kBroadcast || collective() == Collective::kScatter;
  if (from_root && contract.contributors != std::vector{root()}) {
    fail("the contract's contributors are not the root alone");
  }
  const bool to_root = is_rooted(collective()) && !from_root;
  if (to_root && contract.receivers != std::vector{root()}) {
    fail("the contract's receivers are not the root alone");
  }
}

CheckedGroup::CheckedGroup(std::span<const Plan> plans, const Contract& contract)
    : CheckedGroup(first_of(plans), contract) {
  plans_.clear();
  for (const Plan& plan : plans) plans_.push_back(&plan);
}

int CheckedGroup::num_inputs(int rank) const {
  switch (collective()) {
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kBroadcast:
      return static_cast<int>(plan(rank).part_weights.size());
    case Collective::kReduceScatter:
    case Collective::kAllToAll:
      return size();
    case Collective::kScatter:
      return rank == root() ? size() : 0;
    case Collective::kAllGather:
    case Collective::kGather:
    case Collective::kBarrier:
      return 1;
  }
  return 0;
}

int CheckedGroup::num_outputs(int rank) const {
  switch (collective()) {
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kBroadcast:
      return static_cast<int>(plan(rank).part_weights.size());
    case Collective::kAllGather:
    case Collective::kAllToAll:
      return size();
    case Collective::kGather:
      return rank == root() ? size() : 0;
    case Collective::kReduceScatter:
    case Collective::kScatter:
    case Collective::kBarrier:
      return 1;
  }
  return 0;
}

Length CheckedGroup::length(int rank, Block part) const {
  const int index = part.index;
  const bool is_input = part.space == Space::kInput;
  switch (collective()) {
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kBroadcast:
    case Collective::kBarrier:
      return {index, 0};
    case Collective::kAllGather:
    case Collective::kGather:
      return {is_input ? rank : index, 0};
    case Collective::kReduceScatter:
    case Collective::kScatter:
      return {is_input ? index : rank, 0};
    case Collective::kAllToAll:
      return is_input ? Length{rank, index} : Length{index, rank};
  }
  return {};
}

size_t CheckedGroup::location(int rank, Block block) const {
  const auto inputs = static_cast<size_t>(num_inputs(rank));
  const auto outputs = static_cast<size_t>(is_in_place() ? 0 : num_outputs(rank));
  switch (block.space) {
    case Space::kInput:
      return block.index;
    case Space::kOutput:
      return is_in_place() ? block.index : inputs + block.index;
    case Space::kScratch:
      return inputs + outputs + block.index;
    case Space::kCoded:
      return inputs + outputs + plan(rank).num_scratch + block.index;
  }
  return 0;
}

void CheckedGroup::fail(const std::string& what) const {
  throw Error(ErrorCode::kInternal, "bad Plan: " + std::string(to_string(collective())) + ' ' +
                                        header_.algorithm + ": " + what);
}

void CheckedGroup::fail(int rank, const std::string& what) const {
  throw Error(ErrorCode::kInternal, "bad Plan: " + std::string(to_string(collective())) + ' ' +
                                        plan(rank).algorithm + ", rank " + std::to_string(rank) +
                                        " of " + std::to_string(size()) + ": " + what);
}

void CheckedGroup::fail(int rank, size_t op, const std::string& what) const {
  fail(rank,
       "op " + std::to_string(op) + " (" + to_string(plan(rank), plan(rank).ops[op]) + ") " + what);
}

}  // namespace q7x2::checker
