#include "plan/ir/coding_pass.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"

namespace q7x2 {
namespace {

using OpId = PlanBuilder::OpId;

/// Orders ops by the blocks that they read and write, as if they ran one after the other.
class Hazards {
 public:
  explicit Hazards(bool is_in_place) : is_in_place_(is_in_place) {}

  /// `reader` may use the memory of `block`.
  void alias(Block reader, Block block) { aliases_.insert_or_assign(key(reader), key(block)); }

  std::vector<OpId> before(std::span<const Block> sources, std::optional<Block> destination) {
    std::vector<OpId> ops;
    for (const Block& source : sources) {
      if (const auto& writer = uses_[key(source)].writer) ops.push_back(*writer);
    }
    if (!destination) return ops;
    const Uses& uses = uses_[key(*destination)];
    ops.insert(ops.end(), uses.readers.begin(), uses.readers.end());
    if (uses.writer) ops.push_back(*uses.writer);
    return ops;
  }

  void add(OpId op, std::span<const Block> sources, std::optional<Block> destination) {
    for (const Block& source : sources) {
      uses_[key(source)].readers.push_back(op);
      const auto alias = aliases_.find(key(source));
      if (alias != aliases_.end()) uses_[alias->second].readers.push_back(op);
    }
    if (destination) uses_[key(*destination)] = {op, {}};
  }

 private:
  using Key = std::pair<Space, uint16_t>;
  struct Uses {
    std::optional<OpId> writer;
    std::vector<OpId> readers;
  };

  Key key(Block block) const {
    return {is_in_place_ && block.is_part() ? Space::kOutput : block.space, block.index};
  }

  const bool is_in_place_;
  std::map<Key, Uses> uses_;
  std::map<Key, Key> aliases_;
};

/// Rewrites one rank's Plan.
class Rewriter {
 public:
  Rewriter(const Plan& dense, const EdgeCoding& edges, bool codes_results, PlanBuilder& builder)
      : dense_(dense),
        edges_(edges),
        codes_results_(codes_results),
        is_in_place_(is_flat(dense.collective)),
        builder_(builder),
        hazards_(is_in_place_) {}

  void run() {
    find_values();
    for (size_t id = 0; id < dense_.ops.size(); ++id) {
      const Op& op = dense_.ops[id];
      switch (op.kind) {
        case OpKind::kSend:
          send(op, value_of_source(id));
          break;
        case OpKind::kRecv:
          receive(op, value_of_destination(id));
          break;
        case OpKind::kCopy:
          copy(op, value_of_source(id));
          break;
        case OpKind::kReduce:
          reduce(op, id);
          break;
      }
    }
  }

 private:
  /// What a block of the dense Plan holds between two writes.
  struct Value {
    Block home;                    ///< where the dense Plan keeps it
    Block length;                  ///< a part of the same length
    bool is_contribution = false;  ///< this rank's own input, unchanged
    bool is_result = false;
    int coded_sends = 0, exact_sends = 0, other_readers = 0;
    // The forms in which the value exists so far.
    bool is_at_home = false;
    bool is_coded = false;
    std::optional<Block> given = {};  ///< a contribution with its residual
    bool owes_residual = false;       ///< the residual of a contribution in it must still be added
  };
  using ValueId = size_t;

  std::pair<Space, uint16_t> position_of(Block block) const {
    return {is_in_place_ && block.is_part() ? Space::kOutput : block.space, block.index};
  }

  /// The part of the input whose residual belongs to the op's elements.
  Block length_of(const Op& op) const {
    if (dense_.collective == Collective::kReduceScatter && op.length_of.space == Space::kOutput) {
      return Block::input(dense_.rank);
    }
    return op.length_of;
  }

  bool is_coded(bool is_result, int from, int to) const {
    return is_result ? codes_results_ : edges_(from, to);
  }

  // Finds the values of the Plan, and which ops read them.

  void find_values() {
    std::map<std::pair<Space, uint16_t>, ValueId> now;
    source_values_.resize(dense_.ops.size());
    destination_values_.resize(dense_.ops.size());
    for (size_t id = 0; id < dense_.ops.size(); ++id) {
      const Op& op = dense_.ops[id];
      for (const Block& source : dense_.sources_of(op)) {
        const auto [entry, is_new] = now.try_emplace(position_of(source), values_.size());
        if (is_new) {
          Value& own = values_.emplace_back();
          own = {.home = source, .length = source, .is_contribution = true, .is_at_home = true};
          own.is_result = dense_.collective == Collective::kAllGather;
        }
        source_values_[id].push_back(entry->second);
        Value& value = values_[entry->second];
        if (op.kind != OpKind::kSend) {
          ++value.other_readers;
        } else if (is_coded(value.is_result, dense_.rank, op.peer)) {
          ++value.coded_sends;
        } else {
          ++value.exact_sends;
        }
      }
      if (op.kind == OpKind::kSend) continue;
      // A copy has the same value as its source.
      const ValueId value = op.kind == OpKind::kCopy ? source_values_[id][0] : values_.size();
      if (op.kind != OpKind::kCopy) {
        values_.push_back(
            {.home = op.destination, .length = length_of(op), .is_result = is_result(op)});
      }
      now[position_of(op.destination)] = value;
      destination_values_[id] = value;
    }
  }

  bool is_result(const Op& op) const {
    if (dense_.collective == Collective::kAllGather) return true;
    if (dense_.collective != Collective::kAllReduce) return false;
    return op.kind == OpKind::kReduce ? op.is_final : op.destination.is_part();
  }

  Value& value_of_source(size_t id) { return values_[source_values_[id][0]]; }
  Value& value_of_destination(size_t id) { return values_[destination_values_[id]]; }

  /// Whether this rank uses the decoded form too, because other ranks do.
  bool is_used_coded(const Value& value) const {
    return value.is_result ? codes_results_ : value.coded_sends > 0 || !value.is_at_home;
  }

  // Blocks of the new Plan.

  Block moved(Block block) {
    return block.space == Space::kScratch ? Block::scratch(number(scratch_, block)) : block;
  }
  Block coded(const Value& value) { return Block::coded(number(coded_, value.home)); }

  int number(std::map<std::pair<Space, uint16_t>, int>& numbers, Block block) {
    int& next = &numbers == &scratch_ ? next_scratch_ : next_coded_;
    const auto [entry, is_new] = numbers.try_emplace(position_of(block), next);
    next += is_new ? 1 : 0;
    return entry->second;
  }

  // Ops of the new Plan.

  void add_send(const Op& op, Block source) {
    const std::vector<Block> sources{source};
    hazards_.add(
        builder_.send(op.peer, source, hazards_.before(sources, {}), length_of(op), op.message),
        sources, {});
  }
  void add_recv(const Op& op, Block destination) {
    hazards_.add(builder_.recv(op.peer, destination, hazards_.before({}, destination),
                               length_of(op), op.message),
                 {}, destination);
  }
  void add_copy(Block source, Block destination, Block length, bool takes_residual = false) {
    const std::vector<Block> sources{source};
    hazards_.add(builder_.copy(source, destination, hazards_.before(sources, destination), length,
                               takes_residual),
                 sources, destination);
  }

  void encode(Value& value) {
    if (std::exchange(value.is_coded, true)) return;
    add_copy(moved(value.home), coded(value), value.length,
             value.is_contribution || std::exchange(value.owes_residual, false));
  }

  /// The block with the value as elements, with the residual if it is a contribution.
  Block exact(Value& value) {
    if (value.is_contribution && !value.given) {
      value.given = Block::scratch(next_scratch_++);
      hazards_.alias(*value.given, value.home);
      add_copy(value.home, *value.given, value.length, true);
    }
    if (value.given) return *value.given;
    if (!std::exchange(value.is_at_home, true)) {
      add_copy(coded(value), moved(value.home), value.length);
    }
    return moved(value.home);
  }

  void send(const Op& op, Value& value) {
    if (is_coded(value.is_result, dense_.rank, op.peer)) {
      encode(value);
      add_send(op, coded(value));
    } else {
      add_send(op, exact(value));
    }
  }

  void receive(const Op& op, Value& value) {
    if (is_coded(value.is_result, op.peer, dense_.rank)) {
      value.is_coded = true;
      add_recv(op, coded(value));
      if (op.destination.is_part()) exact(value);
    } else {
      value.is_at_home = true;
      add_recv(op, moved(op.destination));
    }
  }

  void copy(const Op& op, Value& value) {
    if (is_used_coded(value)) encode(value);
    add_copy(value.is_coded ? coded(value) : exact(value), moved(op.destination), length_of(op));
  }

  void reduce(const Op& op, size_t id) {
    std::vector<Block> sources;
    bool takes_residual = false;
    bool has_coded = false;
    for (const ValueId source : source_values_[id]) {
      Value& value = values_[source];
      if (is_used_coded(value)) {
        encode(value);
        sources.push_back(coded(value));
        has_coded = true;
      } else if (value.is_contribution && value.exact_sends == 0 && value.other_readers == 1) {
        sources.push_back(value.home);
        takes_residual = true;
      } else {
        sources.push_back(exact(value));
      }
    }
    Value& sum = value_of_destination(id);
    sum.is_coded = sum.is_result ? codes_results_ : sum.coded_sends > 0 && has_coded;
    sum.is_at_home = !sum.is_coded;
    if (sum.is_at_home && sum.coded_sends > 0 && sum.exact_sends == 0) {
      sum.owes_residual = std::exchange(takes_residual, false);
    }
    const Block destination = sum.is_coded ? coded(sum) : moved(op.destination);
    hazards_.add(
        builder_.reduce(sources, destination, op.is_final, hazards_.before(sources, destination),
                        length_of(op), takes_residual),
        sources, destination);
    if (sum.is_coded && op.destination.is_part()) exact(sum);
  }

  const Plan& dense_;
  const EdgeCoding& edges_;
  const bool codes_results_;
  const bool is_in_place_;
  PlanBuilder& builder_;
  Hazards hazards_;
  std::vector<Value> values_;
  std::vector<std::vector<ValueId>> source_values_;  // by op
  std::vector<ValueId> destination_values_;
  // By block of the dense Plan: number of its scratch block, and of its values' coded block.
  std::map<std::pair<Space, uint16_t>, int> scratch_, coded_;
  int next_scratch_ = 0;
  int next_coded_ = 0;
};

/// Whether some message of a round crosses a coded edge.
bool crosses(const Round& round, const EdgeCoding& edges) {
  if (!edges.any()) return false;
  for (const Edge& edge : round.edges) {
    if (edges(edge.from, edge.to)) return true;
  }
  for (const Cross& cross : round.crosses) {
    for (const Team& team : {cross.from, cross.to}) {
      for (const int rank : *team) {
        if (edges(cross.from->front(), rank)) return true;
      }
    }
  }
  return false;
}

/// By rank: how often the contributions in what it holds have been encoded; the largest number.
using Depths = std::vector<int>;

void pass(const Cross& cross, const EdgeCoding& edges, const Depths& before, Depths& after) {
  // The largest number per zone, and the zones sorted by it.
  std::map<int, int> most;
  for (const int rank : *cross.from) {
    int& depth = most[edges.zone_of(rank)];
    depth = std::max(depth, before[static_cast<size_t>(rank)]);
  }
  std::vector<std::pair<int, int>> first;
  for (const auto& [zone, depth] : most) first.emplace_back(depth, zone);
  std::ranges::sort(first, std::greater());
  for (const int rank : *cross.to) {
    int& depth = after[static_cast<size_t>(rank)];
    const int zone = edges.zone_of(rank);
    if (const auto same = most.find(zone); same != most.end()) {
      depth = std::max(depth, same->second);
    }
    const auto other = std::ranges::find_if(first, [&](const auto& e) { return e.second != zone; });
    if (other != first.end()) depth = std::max(depth, other->first + 1);
  }
}

}  // namespace

bool codes_results(const Schedule& dense, const EdgeCoding& edges) {
  return std::ranges::any_of(
      dense.rounds(), [&](const Round& round) { return !round.folds && crosses(round, edges); });
}

Schedule code(const Schedule& dense, const EdgeCoding& edges) {
  Schedule coded = dense;
  if (dense.world_size() == 1) return coded;
  const bool codes_results = q7x2::codes_results(dense, edges);
  std::vector<Round> rounds = dense.rounds();
  bool is_first = true;
  for (Round& round : rounds) {
    if (edges.any() && round.folds) round.coded = edges.edges();
    // A sum that has not been encoded yet counts as one contribution.
    if (round.folds && crosses(round, edges) && std::exchange(is_first, false)) {
      round.contributions = 1;
    }
    if (codes_results && !round.folds) round.coded = Edges::kAll;
  }
  coded.set_rounds(std::move(rounds));
  const size_t parts = dense.part_weights().empty() ? static_cast<size_t>(dense.world_size())
                                                    : dense.part_weights().size();
  coded.set_coding(edges.any() ? edges.edges() : Edges::kNone, static_cast<int>(parts));
  coded.set_program([dense = std::make_shared<const Schedule>(dense), edges, codes_results](
                        PlanBuilder& builder, int rank) {
    const Plan plan = dense->project(rank);
    Rewriter(plan, edges, codes_results, builder).run();
  });
  return coded;
}

int encodings_on_the_way(const Schedule& dense, const EdgeCoding& edges) {
  if (!edges.any()) return 0;
  Depths depths(static_cast<size_t>(dense.world_size()));
  for (const Round& round : dense.rounds()) {
    if (!round.folds) continue;
    // Two repeats show whether the number keeps growing.
    for (int repeat = 0; repeat < std::min(round.repeats, 2); ++repeat) {
      const Depths before = depths;
      for (const Edge& edge : round.edges) {
        int& depth = depths[static_cast<size_t>(edge.to)];
        depth = std::max(
            depth, before[static_cast<size_t>(edge.from)] + (edges(edge.from, edge.to) ? 1 : 0));
      }
      for (const Cross& cross : round.crosses) pass(cross, edges, before, depths);
    }
  }
  return *std::ranges::max_element(depths);
}

}  // namespace q7x2
