#include "plan/tree.h"

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

namespace q7x2 {

Branch star_branch(std::span<const int> order, int index) {
  if (index > 0) return {order[0], {}};
  return {-1, {order.begin() + 1, order.end()}};
}

// The largest subtree first: it has the longest way to go.
Branch binomial_branch(std::span<const int> order, int index) {
  const auto rank_at = [&](int position) { return order[static_cast<size_t>(position)]; };
  Branch branch;
  for (int bit = 1; index + bit < static_cast<int>(order.size()) && (index & bit) == 0; bit *= 2) {
    branch.children.insert(branch.children.begin(), rank_at(index + bit));
  }
  if (index > 0) branch.parent = rank_at(index & (index - 1));
  return branch;
}

// Positions count from 1: a leaf is odd, and the tree above is known by the lowest bit. Where there
// are not 2^k - 1 ranks, those that do not exist are skipped.
Branch in_order_branch(std::span<const int> order, int index) {
  const int n = static_cast<int>(order.size());
  const int position = index + 1;
  const auto rank_at = [&](int other) { return order[static_cast<size_t>(other - 1)]; };
  const auto above = [](int child) {
    const int bit = child & -child;
    return (child ^ bit) | (bit << 1);
  };
  Branch branch;
  if (order[static_cast<size_t>(index)] != in_order_root(order)) {
    int parent = above(position);
    while (parent > n) parent = above(parent);
    branch.parent = rank_at(parent);
  }
  const int half = (position & -position) / 2;
  if (half > 0) branch.children.push_back(rank_at(position - half));
  for (int right = half; right > 0; right /= 2) {
    if (position + right > n) continue;
    branch.children.push_back(rank_at(position + right));
    break;
  }
  return branch;
}

int in_order_root(std::span<const int> order) {
  return order[std::bit_floor(order.size()) - 1];
}

Branch branch_of(const Tree& tree, int rank) {
  Branch branch;
  branch.parent = tree[static_cast<size_t>(rank)];
  for (int child = 0; child < static_cast<int>(tree.size()); ++child) {
    if (tree[static_cast<size_t>(child)] == rank) branch.children.push_back(child);
  }
  return branch;
}

Forest::Forest(const PlanRequest& request, const std::string& algorithm,
               std::vector<uint32_t> part_weights)
    : request_(request), builder_(request, algorithm, part_weights) {
  const bool one_part_a_rank = request.collective == Collective::kAllGather ||
                               request.collective == Collective::kReduceScatter;
  parts_.resize(one_part_a_rank ? static_cast<size_t>(request.world_size) : part_weights.size());
  for (int i = 0; i < num_parts(); ++i) part(i).held = contribution(i);
  if (request.collective == Collective::kAllGather) {
    builder_.copy(Block::input(0), Block::output(request.rank));
  }
  if (request.collective == Collective::kReduceScatter && request.world_size == 1) {
    builder_.copy(Block::input(0), Block::output(0));
  }
}

Block Forest::contribution(int part) const {
  if (request_.collective != Collective::kAllGather) return Block::input(part);
  return part == request_.rank ? Block::input(0) : Block::output(part);
}

Block Forest::result(int part) const {
  return Block::output(request_.collective == Collective::kReduceScatter ? 0 : part);
}

bool Forest::wants_result(int part) const {
  switch (request_.collective) {
    case Collective::kReduce:
      return request_.rank == request_.root;
    case Collective::kReduceScatter:
      return part == request_.rank;
    default:
      return true;
  }
}

std::vector<int> Forest::rotated_parts() const {
  std::vector<int> order;
  for (int i = 1; i <= num_parts(); ++i) order.push_back((request_.rank + i) % num_parts());
  return order;
}

int Forest::message(int part) const {
  return phase_ * num_parts() + part;
}

void Forest::send(int peer, int index) {
  Part& p = part(index);
  const OpId sent = builder_.send(peer, p.held, p.ready, contribution(index), message(index));
  if (p.held == contribution(index)) p.readers.push_back(sent);
}

Forest::Incoming Forest::receive(int peer, int index) {
  const Block block = Block::scratch(next_scratch_++);
  return {peer, block, builder_.recv(peer, block, {}, contribution(index), message(index))};
}

// A partial sum is built in a block that has just arrived: what was held may still be on its way
// out, so that a fold into it would have to wait. The result goes where the contribution is read.
void Forest::fold(int index, std::span<const Block> operands, std::span<const Incoming> incoming,
                  bool is_final) {
  Part& p = part(index);
  std::vector<OpId> after = p.ready;
  for (const Incoming& each : incoming) after.push_back(each.received);
  if (request_.collective == Collective::kBarrier) {
    p.ready = std::move(after);
    return;
  }
  Block sum = incoming.front().block;
  if (is_final && wants_result(index)) {
    sum = result(index);
    after.insert(after.end(), p.readers.begin(), p.readers.end());
  }
  const OpId folded = builder_.reduce(operands, sum, is_final, after, contribution(index));
  if (p.held == contribution(index)) p.readers.push_back(folded);
  p.held = sum;
  p.ready = {folded};
}

void Forest::receive_result(int peer, int index) {
  Part& p = part(index);
  if (request_.collective == Collective::kBarrier) {
    p.ready = {receive(peer, index).received};
    return;
  }
  p.held = result(index);
  p.ready = {builder_.recv(peer, p.held, p.readers, {}, message(index))};
}

void Forest::reduce_up(std::span<const Branch> trees, bool is_final) {
  begin_phase();
  const std::vector<int> order = rotated_parts();
  // Receives are posted before the data comes.
  std::map<int, std::vector<Incoming>> arrivals;
  for (const int i : order) {
    for (const int child : trees[static_cast<size_t>(i)].children) {
      arrivals[i].push_back(receive(child, i));
    }
  }
  for (const int i : order) {
    const Branch& branch = trees[static_cast<size_t>(i)];
    if (!branch.children.empty()) {
      std::vector<std::pair<int, Block>> by_rank{{request_.rank, held(i)}};
      for (const Incoming& each : arrivals[i]) by_rank.emplace_back(each.peer, each.block);
      std::ranges::sort(by_rank, {}, &std::pair<int, Block>::first);
      std::vector<Block> operands;
      for (const auto& [rank, block] : by_rank) operands.push_back(block);
      fold(i, operands, arrivals[i], is_final && branch.parent < 0);
    }
    if (branch.parent >= 0) send(branch.parent, i);
  }
}

void Forest::broadcast_down(std::span<const Branch> trees) {
  begin_phase();
  for (const int i : rotated_parts()) {
    const Branch& branch = trees[static_cast<size_t>(i)];
    if (branch.parent >= 0) receive_result(branch.parent, i);
    for (const int child : branch.children) send(child, i);
  }
}

Plan forest_plan(const PlanRequest& request, const std::string& algorithm,
                 std::span<const Branch> trees, std::vector<uint32_t> part_weights) {
  Forest forest(request, algorithm, std::move(part_weights));
  const bool down_only =
      request.collective == Collective::kBroadcast || request.collective == Collective::kAllGather;
  const bool up_only =
      request.collective == Collective::kReduce || request.collective == Collective::kReduceScatter;
  if (!down_only) forest.reduce_up(trees);
  if (!up_only) forest.broadcast_down(trees);
  return forest.build();
}

std::vector<uint32_t> equal_parts(int n) {
  return std::vector<uint32_t>(static_cast<size_t>(n), 1);
}

}  // namespace q7x2
