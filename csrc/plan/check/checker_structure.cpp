#include "plan/check/checker_structure.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include "plan/ir/dag_window.h"

namespace q7x2::checker {
namespace {

/// Which ops of one Plan are complete before others start, because of its dependencies alone.
class HappensBefore {
 public:
  explicit HappensBefore(const Plan& plan)
      : words_((plan.ops.size() + kBits - 1) / kBits), bits_(plan.ops.size() * words_) {}

  /// To be called in topological order: everything before `before` must have been added already.
  void add(uint32_t before, uint32_t after) {
    bits_[after * words_ + before / kBits] |= uint64_t{1} << before % kBits;
    for (size_t i = 0; i < words_; ++i) bits_[after * words_ + i] |= bits_[before * words_ + i];
  }

  bool ordered(size_t a, size_t b) const { return is_before(a, b) || is_before(b, a); }

 private:
  static constexpr size_t kBits = 64;

  bool is_before(size_t a, size_t b) const {
    return (bits_[b * words_ + a / kBits] >> a % kBits & 1) != 0;
  }

  size_t words_;
  std::vector<uint64_t> bits_;  // [op][earlier op]
};

struct Access {
  Block block;
  bool writes;
};

std::vector<Access> accesses(const Plan& plan, const Op& op) {
  std::vector<Access> all;
  for (const Block& source : plan.sources_of(op)) all.push_back({source, false});
  if (op.kind != OpKind::kSend) all.push_back({op.destination, true});
  return all;
}

double scratch_slices(const CheckedGroup& group, const Plan& plan) {
  const int blocks = plan.num_scratch + plan.num_coded;
  if (!is_flat(plan.collective)) return static_cast<double>(blocks) / group.size();
  const auto& weights = plan.part_weights;
  const double longest = *std::max_element(weights.begin(), weights.end());
  return blocks * longest / std::accumulate(weights.begin(), weights.end(), 0.0);
}

void check_header(const CheckedGroup& group, int rank) {
  const Plan& header = group.header();
  const Plan& each = group.plan(rank);
  const int n = group.world_size();
  const auto require = [&](bool holds, const std::string& what) {
    if (!holds) group.fail(rank, what);
  };
  require(each.rank == rank, "is made for rank " + std::to_string(each.rank));
  require(each.num_members() == group.size(), "is made for " + std::to_string(each.num_members()) +
                                                  " ranks, checked with " +
                                                  std::to_string(group.size()));
  require(each.helpers == header.helpers, "has other helpers than rank 0's");
  require(each.collective == header.collective, "is for another collective than rank 0's");
  require(each.algorithm == header.algorithm, "is of another algorithm than rank 0's");
  require(each.root == header.root, "has another root than rank 0's");
  require(each.part_weights == header.part_weights, "has other part weights than rank 0's");
  require(each.rounds_once == header.rounds_once, "rounds otherwise than rank 0's");
  require(each.edges == header.edges && each.takes_residuals == header.takes_residuals,
          "is coded otherwise than rank 0's");
  require(!is_flat(header.collective) || !each.part_weights.empty(), "has no parts");
  require(scratch_slices(group, each) <= kMaxScratchSlices * n,
          "has " + std::to_string(each.num_scratch + each.num_coded) +
              " scratch blocks, too many for " + std::to_string(n) + " ranks");
}

void check_may_write(const CheckedGroup& group, int rank, size_t id, Block block) {
  const Collective collective = group.collective();
  if (!group.is_in_place() && block.space == Space::kInput) {
    group.fail(rank, id, "overwrites the input");
  }
  if (!group.receives(rank)) {
    group.fail(rank, id, "overwrites the buffer of a rank that receives nothing");
  }
  if (collective == Collective::kBarrier) group.fail(rank, id, "overwrites a barrier's byte");
  // The caller's input may be this very block. So only a copy may write to it, which is then
  // skipped.
  if (collective == Collective::kAllGather && block.index == rank &&
      group.plan(rank).ops[id].kind != OpKind::kCopy) {
    group.fail(rank, id, "overwrites the output part that may be the caller's input");
  }
}

void check_named_blocks(const CheckedGroup& group, int rank, size_t id) {
  const Plan& p = group.plan(rank);
  const Op& op = p.ops[id];
  const auto exists = [&](Block block) {
    const int count = block.space == Space::kInput     ? group.num_inputs(rank)
                      : block.space == Space::kOutput  ? group.num_outputs(rank)
                      : block.space == Space::kScratch ? p.num_scratch
                                                       : p.num_coded;
    return block.index < count;
  };
  if (!op.length_of.is_part() || !exists(op.length_of)) {
    group.fail(rank, id, "has no length: length_of names no part of the input or the output");
  }
  const Length expected = group.length(rank, op.length_of);
  for (const Access& access : accesses(p, op)) {
    if (!exists(access.block)) group.fail(rank, id, "names a block that does not exist");
    if (!access.block.is_part()) continue;
    if (group.is_helper(rank)) group.fail(rank, id, "names a buffer, but helpers have no buffers");
    if (group.length(rank, access.block) != expected) {
      group.fail(rank, id, "names blocks of different lengths");
    }
    if (access.writes) check_may_write(group, rank, id, access.block);
  }
}

void check_op(const CheckedGroup& group, int rank, size_t id) {
  check_named_blocks(group, rank, id);
  const Plan& p = group.plan(rank);
  const Op& op = p.ops[id];
  if (op.takes_residual &&
      (!p.takes_residuals || (op.kind != OpKind::kCopy && op.kind != OpKind::kReduce))) {
    group.fail(rank, id, "takes a residual that it cannot have");
  }
  if (op.kind == OpKind::kCopy && op.destination.is_coded() && !op.takes_residual) {
    group.fail(rank, id, "encodes, but leaves the residual out");
  }
  const size_t sources = p.sources_of(op).size();
  const bool counts = op.kind == OpKind::kReduce ? sources >= 2
                      : op.kind == OpKind::kRecv ? sources == 0
                                                 : sources == 1;
  if (!counts) group.fail(rank, id, "has " + std::to_string(sources) + " sources");
  const bool is_message = op.kind == OpKind::kSend || op.kind == OpKind::kRecv;
  if (is_message && op.message >= Plan::kMaxMessages) {
    group.fail(rank, id, "has a message id that does not fit");
  }
  const bool has_stage = op.stage != Op::kNoStage;
  if (has_stage ? op.stage >= p.num_stages : op.kind == OpKind::kSend) {
    group.fail(rank, id, "has no stage, or one that does not exist");
  }
  if (op.kind == OpKind::kCopy &&
      group.location(rank, p.sources_of(op)[0]) == group.location(rank, op.destination)) {
    group.fail(rank, id, "copies a block to itself");
  }
  if (op.kind == OpKind::kCopy && op.destination.is_coded() && p.sources_of(op)[0].is_coded()) {
    group.fail(rank, id, "copies a coded block to a coded block");
  }
  if (op.kind == OpKind::kReduce && !is_reduction(group.collective())) {
    group.fail(rank, id, "reduces, which the collective does not");
  }
  if (op.is_final && op.kind != OpKind::kReduce) {
    group.fail(rank, id, "is final, but not a reduce");
  }
}

void check_dependencies(const CheckedGroup& group, int rank) {
  const Plan& p = group.plan(rank);
  std::vector<uint32_t> waits(p.ops.size());
  for (size_t id = 0; id < p.ops.size(); ++id) {
    for (const uint32_t after : p.successors_of(p.ops[id])) {
      if (after >= p.ops.size()) group.fail(rank, id, "has a successor that does not exist");
      ++waits[after];
    }
  }
  for (size_t id = 0; id < p.ops.size(); ++id) {
    if (waits[id] == p.ops[id].num_dependencies) continue;
    group.fail(rank, id,
               "counts " + std::to_string(p.ops[id].num_dependencies) + " dependencies, has " +
                   std::to_string(waits[id]));
  }
}

/// The order that the dependencies give. Fails if they form a cycle.
HappensBefore order_of(const CheckedGroup& group, int rank) {
  const Plan& p = group.plan(rank);
  HappensBefore order(p);
  std::vector<bool> ran(p.ops.size());
  DagWindow dag(p, 1, 1);
  dag.admit();
  while (const auto step = dag.next()) {
    for (const uint32_t after : p.successors_of(p.ops[step->op])) order.add(step->op, after);
    ran[step->op] = true;
    dag.complete(*step);
  }
  if (!dag.done()) {
    const auto stuck = std::find(ran.begin(), ran.end(), false);
    group.fail(rank, static_cast<size_t>(stuck - ran.begin()), "waits for itself (a cycle)");
  }
  return order;
}

/// Whether the op reads or writes the residual of its part.
bool touches_residual(const Plan& plan, const Op& op) {
  const auto sources = plan.sources_of(op);
  if (op.kind == OpKind::kCopy) return op.destination.is_coded() && !sources[0].is_coded();
  return op.kind == OpKind::kReduce &&
         (op.destination.is_coded() || std::ranges::any_of(sources, &Block::is_coded));
}

/// The earlier ops that use one location in memory.
using Users = std::vector<std::pair<size_t, bool>>;  // ops, and whether they write

/// Adds an op. Fails if it races with another one.
void add_user(const CheckedGroup& group, int rank, const HappensBefore& order, Users& users,
              size_t id, bool writes, const char* what) {
  const Plan& p = group.plan(rank);
  for (const auto& [other, other_writes] : users) {
    if (other == id || !(writes || other_writes) || order.ordered(other, id)) continue;
    group.fail(rank, id,
               std::string("races with op ") + std::to_string(other) + " (" +
                   to_string(p, p.ops[other]) + ")" + what);
  }
  users.push_back({id, writes});
}

void check_races(const CheckedGroup& group, int rank) {
  const Plan& p = group.plan(rank);
  const HappensBefore order = order_of(group, rank);
  std::vector<Users> users(group.num_locations(rank));
  std::map<Length, Users> residuals;
  for (size_t id = 0; id < p.ops.size(); ++id) {
    const Op& op = p.ops[id];
    for (const Access& access : accesses(p, op)) {
      Users& others = users[group.location(rank, access.block)];
      add_user(group, rank, order, others, id, access.writes, "");
    }
    if (touches_residual(p, op)) {
      Users& others = residuals[group.length(rank, op.length_of)];
      add_user(group, rank, order, others, id, true, " over a residual");
    }
  }
}

/// Encoding uses the residual and stores a new one, so encoding again would give other bits.
void check_encodes_once(const CheckedGroup& group, int rank) {
  const Plan& p = group.plan(rank);
  std::map<Length, size_t> encoded;
  for (size_t id = 0; id < p.ops.size(); ++id) {
    const Op& op = p.ops[id];
    if (op.kind != OpKind::kCopy || !op.destination.is_coded()) continue;
    if (!p.sources_of(op)[0].is_part()) continue;
    const auto [first, is_new] = encoded.try_emplace(group.length(rank, op.length_of), id);
    if (!is_new) {
      group.fail(rank, id, "encodes what op " + std::to_string(first->second) + " has encoded");
    }
  }
}

using Sends = std::map<std::tuple<int, int, int>, size_t>;  // by sender, receiver and message id

void check_peer(const CheckedGroup& group, int rank, size_t id) {
  const int peer = group.plan(rank).ops[id].peer;
  if (peer < 0 || peer >= group.size() || peer == rank) group.fail(rank, id, "has no such peer");
}

/// Adds the sends to `receiver`; -1: to all ranks.
void add_sends(const CheckedGroup& group, int rank, int receiver, Sends& sends) {
  const Plan& p = group.plan(rank);
  for (size_t id = 0; id < p.ops.size(); ++id) {
    const Op& op = p.ops[id];
    if (op.kind != OpKind::kSend) continue;
    check_peer(group, rank, id);
    if (receiver >= 0 && op.peer != receiver) continue;
    if (!sends.insert({{rank, op.peer, op.message}, id}).second) {
      group.fail(rank, id, "has the id of another message to that rank");
    }
  }
}

/// Finds the send of each receive from `sender` (-1: from all ranks), and removes it from `sends`.
/// Calls `visit(id, op, send)`.
template <typename Visit>
void take_sends(const CheckedGroup& group, int rank, int sender, Sends& sends, Visit visit) {
  const Plan& p = group.plan(rank);
  for (size_t id = 0; id < p.ops.size(); ++id) {
    const Op& op = p.ops[id];
    if (op.kind != OpKind::kRecv) continue;
    check_peer(group, rank, id);
    if (sender >= 0 && op.peer != sender) continue;
    const auto send = sends.find({op.peer, rank, op.message});
    if (send == sends.end()) {
      group.fail(rank, id, "waits for a message that nobody sends, or that another op receives");
    }
    const Plan& from = group.plan(op.peer);
    const Op& sent = from.ops[send->second];
    if (from.sources_of(sent)[0].is_coded() != op.destination.is_coded()) {
      group.fail(rank, id, "takes coded bytes for elements, or elements for coded bytes");
    }
    if (group.length(op.peer, sent.length_of) != group.length(rank, op.length_of)) {
      group.fail(rank, id, "receives a message of another length (" + to_string(from, sent) + ")");
    }
    visit(id, op, send->second);
    sends.erase(send);
  }
}

void check_all_taken(const CheckedGroup& group, const Sends& sends) {
  if (sends.empty()) return;
  const auto& [key, id] = *sends.begin();
  group.fail(std::get<0>(key), id, "sends a message that nobody receives");
}

}  // namespace

void check_structure(const CheckedGroup& group, int rank) {
  check_header(group, rank);
  for (size_t id = 0; id < group.plan(rank).ops.size(); ++id) check_op(group, rank, id);
  check_dependencies(group, rank);
  check_encodes_once(group, rank);
  check_races(group, rank);
}

Matches match_messages(const CheckedGroup& group) {
  Sends sends;
  Matches matches;
  for (int rank = 0; rank < group.size(); ++rank) {
    add_sends(group, rank, -1, sends);
    matches.emplace_back(group.plan(rank).ops.size());
  }
  for (int rank = 0; rank < group.size(); ++rank) {
    take_sends(group, rank, -1, sends, [&](size_t id, const Op& op, size_t send) {
      matches[static_cast<size_t>(rank)][id] = send;
      matches[static_cast<size_t>(op.peer)][send] = id;
    });
  }
  check_all_taken(group, sends);
  return matches;
}

void check_messages(const CheckedGroup& group, int from, int to) {
  Sends sends;
  add_sends(group, from, to, sends);
  take_sends(group, to, from, sends, [](size_t, const Op&, size_t) {});
  check_all_taken(group, sends);
}

}  // namespace q7x2::checker
