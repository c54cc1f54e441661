#include "plan/ir/tree.h"

#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

namespace q7x2 {

Branch star_branch(std::span<const int> order, int index) {
  if (index > 0) return {order[0], {}};
  return {-1, {order.begin() + 1, order.end()}};
}

// The largest subtree comes first, because it takes longest.
Branch binomial_branch(std::span<const int> order, int index) {
  const auto rank_at = [&](int position) { return order[static_cast<size_t>(position)]; };
  Branch branch;
  for (int bit = 1; index + bit < static_cast<int>(order.size()) && (index & bit) == 0; bit *= 2) {
    branch.children.insert(branch.children.begin(), rank_at(index + bit));
  }
  if (index > 0) branch.parent = rank_at(index & (index - 1));
  return branch;
}

// Positions count from 1: leaves have odd positions, and the parent follows from the lowest set
// bit. If the number of ranks is not 2^k - 1, positions without a rank are skipped.
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

Branches branches_of(std::vector<Tree> trees, const std::vector<std::vector<double>>& urgency) {
  // By tree and rank: the children of a rank are stored next to each other.
  struct Lists {
    std::vector<Tree> parents;
    std::vector<std::vector<int>> children;
    std::vector<std::vector<size_t>> first;
  };
  auto lists = std::make_shared<Lists>();
  for (const Tree& tree : trees) {
    std::vector<size_t> first(tree.size() + 1);
    for (const int parent : tree) {
      if (parent >= 0) ++first[static_cast<size_t>(parent) + 1];
    }
    for (size_t rank = 0; rank < tree.size(); ++rank) first[rank + 1] += first[rank];
    std::vector<int> children(first.back());
    std::vector<size_t> next(first.begin(), first.end() - 1);
    for (int rank = 0; rank < static_cast<int>(tree.size()); ++rank) {
      const int parent = tree[static_cast<size_t>(rank)];
      if (parent >= 0) children[next[static_cast<size_t>(parent)]++] = rank;
    }
    for (size_t rank = 0; rank < tree.size() && !urgency.empty(); ++rank) {
      std::ranges::stable_sort(
          std::span(children).subspan(first[rank], first[rank + 1] - first[rank]), std::greater<>(),
          [&](int child) { return urgency[lists->children.size()][static_cast<size_t>(child)]; });
    }
    lists->children.push_back(std::move(children));
    lists->first.push_back(std::move(first));
  }
  lists->parents = std::move(trees);
  return [lists = std::shared_ptr<const Lists>(lists)](int part, int rank) {
    const auto tree = static_cast<size_t>(part);
    const auto at = static_cast<size_t>(rank);
    const int* const children = lists->children[tree].data();
    return Branch{lists->parents[tree][at],
                  {children + lists->first[tree][at], children + lists->first[tree][at + 1]}};
  };
}

int num_parts(Collective collective, int world_size, size_t weights) {
  const bool one_part_a_rank =
      collective == Collective::kAllGather || collective == Collective::kReduceScatter;
  return one_part_a_rank ? world_size : static_cast<int>(std::max<size_t>(weights, 1));
}

Forest::Forest(PlanBuilder& builder, PartOrder order)
    : builder_(builder), header_(builder.header()), order_(order) {
  parts_.resize(static_cast<size_t>(
      q7x2::num_parts(header_.collective, header_.world_size, header_.part_weights.size())));
  for (int i = 0; i < num_parts(); ++i) part(i).held = contribution(i);
  if (header_.collective == Collective::kAllGather) {
    builder_.copy(Block::input(0), Block::output(header_.rank));
  }
  if (header_.collective == Collective::kReduceScatter && header_.world_size == 1) {
    builder_.copy(Block::input(0), Block::output(0));
  }
}

Block Forest::contribution(int part) const {
  if (header_.collective != Collective::kAllGather) return Block::input(part);
  return part == header_.rank ? Block::input(0) : Block::output(part);
}

Block Forest::result(int part) const {
  return Block::output(header_.collective == Collective::kReduceScatter ? 0 : part);
}

bool Forest::wants_result(int part) const {
  switch (header_.collective) {
    case Collective::kReduce:
      return header_.rank == header_.root;
    case Collective::kReduceScatter:
      return part == header_.rank;
    default:
      return true;
  }
}

std::vector<int> Forest::ordered_parts() const {
  std::vector<int> order;
  for (int i = 1; i <= num_parts(); ++i) {
    const int next = order_ == PartOrder::kShifted ? header_.rank + i : header_.rank ^ i;
    order.push_back(next % num_parts());
  }
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

// A partial sum is computed in a block that has just arrived. The block that was held may still be
// sent, and a fold into it would have to wait. The result is written where the contribution is
// read.
void Forest::fold(int index, std::span<const Block> operands, std::span<const Incoming> incoming,
                  bool is_final) {
  Part& p = part(index);
  std::vector<OpId> after = p.ready;
  for (const Incoming& each : incoming) after.push_back(each.received);
  if (header_.collective == Collective::kBarrier) {
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
  if (header_.collective == Collective::kBarrier) {
    p.ready = {receive(peer, index).received};
    return;
  }
  p.held = result(index);
  p.ready = {builder_.recv(peer, p.held, p.readers, {}, message(index))};
}

void Forest::reduce_up(std::span<const Branch> trees, bool is_final) {
  begin_phase();
  const std::vector<int> order = ordered_parts();
  // Receives are posted before the data arrives.
  std::map<int, std::vector<Incoming>> arrivals;
  for (const int i : order) {
    for (const int child : trees[static_cast<size_t>(i)].children) {
      arrivals[i].push_back(receive(child, i));
    }
  }
  for (const int i : order) {
    const Branch& branch = trees[static_cast<size_t>(i)];
    if (!branch.children.empty()) {
      std::vector<std::pair<int, Block>> by_rank{{header_.rank, held(i)}};
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
  for (const int i : ordered_parts()) {
    const Branch& branch = trees[static_cast<size_t>(i)];
    if (branch.parent >= 0) receive_result(branch.parent, i);
    for (const int child : branch.children) send(child, i);
  }
}

namespace {

bool goes_up(Collective collective) {
  return collective != Collective::kBroadcast && collective != Collective::kAllGather;
}

bool goes_down(Collective collective) {
  return collective != Collective::kReduce && collective != Collective::kReduceScatter;
}

/// A tree's edges, directed away from the root, in the order in which they can be used.
struct Unfolded {
  struct Sent {
    Edge edge;
    size_t level;  ///< number of edges between it and the root
    /// turn in which it is used if every rank serves its children one after the other
    size_t turn;
  };
  std::vector<Sent> all;
  size_t levels = 0;
  size_t turns = 0;
};

Unfolded unfold(const Branches& branches, int part, int world_size, double share) {
  struct Node {
    int rank;
    size_t level, turn;
  };
  std::vector<Node> nodes;
  for (int rank = 0; rank < world_size; ++rank) {
    const Branch branch = branches(part, rank);
    if (branch.parent < 0 && !branch.children.empty()) nodes.push_back({rank, 0, 0});
  }
  Unfolded unfolded;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const Node node = nodes[i];
    size_t turn = node.turn;
    for (const int child : branches(part, node.rank).children) {
      unfolded.all.push_back({{node.rank, child, 1, share}, node.level, turn});
      nodes.push_back({child, node.level + 1, ++turn});
      unfolded.levels = std::max(unfolded.levels, node.level + 1);
      unfolded.turns = std::max(unfolded.turns, turn);
    }
  }
  return unfolded;
}

/// The trees of all parts, directed to the children, the roots' edges first. If the number of turns
/// is about that of the levels, the rounds are turns: in a binomial tree the lower ranks pass data
/// on while the upper ranks still send. Otherwise the rounds are levels: a rank with many children
/// serves them at the same time.
std::vector<Round> rounds_down(const Schedule& schedule, const Branches& branches) {
  const std::vector<uint32_t>& weights = schedule.part_weights();
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<Round> rounds;
  const int parts = num_parts(schedule.collective(), schedule.world_size(), weights.size());
  for (int part = 0; part < parts; ++part) {
    const double share = weights.empty() ? 1 : weights[static_cast<size_t>(part)] / total;
    const Unfolded tree = unfold(branches, part, schedule.world_size(), share);
    const bool in_turns = tree.turns <= tree.levels + 1;
    const double latency =
        in_turns ? static_cast<double>(tree.levels) / static_cast<double>(tree.turns) : 1;
    for (const Unfolded::Sent& sent : tree.all) {
      const size_t at = in_turns ? sent.turn : sent.level;
      while (rounds.size() <= at) rounds.push_back({.latency = latency});
      rounds[at].latency = std::max(rounds[at].latency, latency);
      rounds[at].edges.push_back(sent.edge);
    }
  }
  return rounds;
}

}  // namespace

std::vector<Round> rounds_up(const Schedule& schedule, const Branches& branches) {
  std::vector<Round> rounds = rounds_down(schedule, branches);
  std::ranges::reverse(rounds);
  double below = 0;  // number of edges below; each brings a contribution to the next level
  for (Round& round : rounds) {
    const auto edges = static_cast<double>(round.edges.size());
    for (Edge& edge : round.edges) std::swap(edge.from, edge.to);
    round.folds = true;
    round.contributions = 1 + below / edges;
    below += edges;
  }
  return rounds;
}

Schedule bare_forest_schedule(const ScheduleRequest& request, const std::string& algorithm,
                              const Branches& branches, std::vector<uint32_t> part_weights,
                              PartOrder order) {
  Schedule schedule(request, algorithm, std::move(part_weights));
  schedule.set_program(
      [branches, collective = request.collective, order](PlanBuilder& b, int rank) {
        Forest forest(b, order);
        std::vector<Branch> trees;
        for (int part = 0; part < forest.num_parts(); ++part) trees.push_back(branches(part, rank));
        if (goes_up(collective)) forest.reduce_up(trees);
        if (goes_down(collective)) forest.broadcast_down(trees);
      });
  return schedule;
}

Schedule forest_schedule(const ScheduleRequest& request, const std::string& algorithm,
                         const Branches& branches, std::vector<uint32_t> part_weights) {
  Schedule schedule = bare_forest_schedule(request, algorithm, branches, std::move(part_weights));
  const std::vector<Round> up = rounds_up(schedule, branches);
  if (goes_up(request.collective)) {
    for (const Round& round : up) schedule.add_round(round);
  }
  if (goes_down(request.collective)) {
    const double contributions = goes_up(request.collective) ? request.world_size : 1;
    for (Round& round : backwards(up, contributions)) schedule.add_round(std::move(round));
  }
  return schedule;
}

}  // namespace q7x2
