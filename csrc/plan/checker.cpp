// The checker runs the Plans of all ranks on symbols instead of numbers.
//
// A value is an expression: a leaf is one rank's contribution, an inner node a fold of several.
// Equal expressions share one node, so two ranks hold the same bits where they hold the same node.
// One run, in any order, stands for all timings: the race check comes first, and proves that what
// an op reads does not depend on timing.
#include "plan/checker.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"

namespace q7x2 {

namespace {

/// Names a length, equal on all ranks: messages may pass only between blocks of one name.
using Length = std::pair<int, int>;

constexpr int kUndefined = -1;

struct Node {
  std::vector<int> children;  ///< in the order they fold; empty for a leaf
  Length data;                ///< which elements of the collective's data
  std::vector<int> counts;    ///< by rank: how often its contribution is in here
  bool is_final = false;      ///< a final reduce is at the top, or further down
};

/// All expressions of one check, each once.
class Expressions {
 public:
  explicit Expressions(int world_size) : world_size_(world_size) {}

  int leaf(int rank, Length data) {
    const auto [entry, is_new] = leaves_.try_emplace({rank, data}, next());
    if (is_new) {
      Node node{{}, data, std::vector<int>(static_cast<size_t>(world_size_)), false};
      node.counts[static_cast<size_t>(rank)] = 1;
      nodes_.push_back(std::move(node));
    }
    return entry->second;
  }

  int fold(const std::vector<int>& children, bool is_final) {
    const auto [entry, is_new] = folds_.try_emplace({children, is_final}, next());
    if (is_new) {
      Node node{children, at(children.front()).data,
                std::vector<int>(static_cast<size_t>(world_size_)), is_final};
      for (int child : children) {
        for (size_t rank = 0; rank < node.counts.size(); ++rank) {
          node.counts[rank] += at(child).counts[rank];
        }
      }
      nodes_.push_back(std::move(node));
    }
    return entry->second;
  }

  /// What is left of `value` after a codec: equal only to the same value through the same codec,
  /// and as long as one message made it.
  int coded(int value) {
    const auto [entry, is_new] = coded_.try_emplace(value, next());
    if (is_new) nodes_.push_back(at(value));
    return entry->second;
  }

  const Node& at(int id) const { return nodes_[static_cast<size_t>(id)]; }

 private:
  int next() const { return static_cast<int>(nodes_.size()); }

  int world_size_;
  std::vector<Node> nodes_;
  std::map<std::pair<int, Length>, int> leaves_;
  std::map<std::pair<std::vector<int>, bool>, int> folds_;
  std::map<int, int> coded_;
};

/// Which ops of one Plan are complete before which others start, by its dependencies alone.
class HappensBefore {
 public:
  explicit HappensBefore(const Plan& plan)
      : words_((plan.ops.size() + kBits - 1) / kBits), bits_(plan.ops.size() * words_) {}

  /// To be called in an order in which whatever is before `before` has been added already.
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

class Checker {
 public:
  explicit Checker(std::span<const Plan> plans)
      : plans_(plans),
        n_(static_cast<int>(plans.size())),
        op_(plans.front().collective),
        root_(plans.front().root),
        expressions_(n_) {}

  void run() {
    for (int rank = 0; rank < n_; ++rank) check_header(rank);
    for (int rank = 0; rank < n_; ++rank) {
      check_blocks(rank);
      check_order_and_races(rank);
    }
    match_messages();
    execute();
    for (int rank = 0; rank < n_; ++rank) check_results(rank);
  }

 private:
  // What a collective promises about its buffers.

  bool is_in_place() const { return is_flat(op_) || op_ == Collective::kBarrier; }

  int num_inputs(int rank) const {
    switch (op_) {
      case Collective::kAllReduce:
      case Collective::kReduce:
      case Collective::kBroadcast:
        return static_cast<int>(plan(rank).part_weights.size());
      case Collective::kReduceScatter:
      case Collective::kAllToAll:
        return n_;
      case Collective::kScatter:
        return rank == root_ ? n_ : 0;
      case Collective::kAllGather:
      case Collective::kGather:
      case Collective::kBarrier:
        return 1;
    }
    return 0;
  }

  int num_outputs(int rank) const {
    switch (op_) {
      case Collective::kAllReduce:
      case Collective::kReduce:
      case Collective::kBroadcast:
        return static_cast<int>(plan(rank).part_weights.size());
      case Collective::kAllGather:
      case Collective::kAllToAll:
        return n_;
      case Collective::kGather:
        return rank == root_ ? n_ : 0;
      case Collective::kReduceScatter:
      case Collective::kScatter:
      case Collective::kBarrier:
        return 1;
    }
    return 0;
  }

  /// The name of a part's length, and, since parts of one name hold the same elements, of its data.
  Length length(int rank, Block part) const {
    const int index = part.index;
    const bool is_input = part.space == Space::kInput;
    switch (op_) {
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

  int input_value(int rank, int part) {
    return expressions_.leaf(rank, length(rank, Block::input(part)));
  }

  // One rank at a time: structure.

  void check_header(int rank) const {
    const Plan& first = plans_.front();
    const Plan& each = plan(rank);
    const auto require = [&](bool holds, const std::string& what) {
      if (!holds) fail(rank, what);
    };
    require(each.rank == rank, "is made for rank " + std::to_string(each.rank));
    require(each.world_size == n_, "is made for " + std::to_string(each.world_size) +
                                       " ranks, checked with " + std::to_string(n_));
    require(each.collective == first.collective, "is for another collective than rank 0's");
    require(each.algorithm == first.algorithm, "is of another algorithm than rank 0's");
    require(each.root == first.root, "has another root than rank 0's");
    require(each.part_weights == first.part_weights, "has other part weights than rank 0's");
    require(each.rounds_once == first.rounds_once, "rounds otherwise than rank 0's");
    require(!is_flat(op_) || !each.part_weights.empty(), "has no parts");
    require(scratch_slices(each) <= kMaxScratchSlices * n_,
            "has " + std::to_string(each.num_scratch + each.num_coded) +
                " scratch blocks, too many for " + std::to_string(n_) + " ranks");
  }

  double scratch_slices(const Plan& plan) const {
    const int blocks = plan.num_scratch + plan.num_coded;
    if (!is_flat(op_)) return static_cast<double>(blocks) / n_;
    const auto& weights = plan.part_weights;
    const double longest = *std::max_element(weights.begin(), weights.end());
    return blocks * longest / std::accumulate(weights.begin(), weights.end(), 0.0);
  }

  void check_blocks(int rank) const {
    const Plan& p = plan(rank);
    const auto exists = [&](Block block) {
      const int count = block.space == Space::kInput     ? num_inputs(rank)
                        : block.space == Space::kOutput  ? num_outputs(rank)
                        : block.space == Space::kScratch ? p.num_scratch
                                                         : p.num_coded;
      return block.index < count;
    };
    for (size_t id = 0; id < p.ops.size(); ++id) {
      const Op& op = p.ops[id];
      if (!op.length_of.is_part() || !exists(op.length_of)) {
        fail(rank, id, "has no length: length_of names no part of the input or the output");
      }
      const Length expected = length(rank, op.length_of);
      for (const Access& access : accesses(p, op)) {
        if (!exists(access.block)) fail(rank, id, "names a block that does not exist");
        if (!access.block.is_part()) continue;
        if (length(rank, access.block) != expected) {
          fail(rank, id, "names blocks of different lengths");
        }
        if (access.writes) check_may_write(rank, id, access.block);
      }
      if (p.num_coded > 0 && op.kind == OpKind::kSend && !is_in_place() &&
          p.sources_of(op)[0].space == Space::kInput) {
        fail(rank, id, "sends the input as it is, where residuals cannot be added to it");
      }
      const size_t sources = p.sources_of(op).size();
      const bool counts = op.kind == OpKind::kReduce ? sources >= 2
                          : op.kind == OpKind::kRecv ? sources == 0
                                                     : sources == 1;
      if (!counts) fail(rank, id, "has " + std::to_string(sources) + " sources");
      if (op.kind == OpKind::kCopy &&
          location(rank, p.sources_of(op)[0]) == location(rank, op.destination)) {
        fail(rank, id, "copies a block to itself");
      }
      if (op.kind == OpKind::kReduce && !is_reduction(op_)) {
        fail(rank, id, "reduces, which the collective does not");
      }
      if (op.is_final && op.kind != OpKind::kReduce) {
        fail(rank, id, "is final, but not a reduce");
      }
    }
  }

  void check_may_write(int rank, size_t id, Block block) const {
    if (!is_in_place() && block.space == Space::kInput) fail(rank, id, "overwrites the input");
    if (op_ == Collective::kReduce && rank != root_) {
      fail(rank, id, "overwrites the buffer of a rank that is not the root");
    }
    if (op_ == Collective::kBarrier) fail(rank, id, "overwrites a barrier's byte");
    // The caller's input may be this very block: only the copy that is then nothing may write it.
    if (op_ == Collective::kAllGather && block.index == rank &&
        plan(rank).ops[id].kind != OpKind::kCopy) {
      fail(rank, id, "overwrites the output part that may be the caller's input");
    }
  }

  struct Access {
    Block block;
    bool writes;
  };

  static std::vector<Access> accesses(const Plan& plan, const Op& op) {
    std::vector<Access> all;
    for (const Block& source : plan.sources_of(op)) all.push_back({source, false});
    if (op.kind != OpKind::kSend) all.push_back({op.destination, true});
    return all;
  }

  /// The memory behind a block, as an index into `values_[rank]`.
  size_t location(int rank, Block block) const {
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

  size_t num_locations(int rank) const {
    return location(rank, Block::coded(plan(rank).num_coded));
  }

  void check_order_and_races(int rank) const {
    const Plan& p = plan(rank);
    std::vector<uint32_t> waits(p.ops.size());
    for (size_t id = 0; id < p.ops.size(); ++id) {
      for (uint32_t after : p.successors_of(p.ops[id])) {
        if (after >= p.ops.size()) fail(rank, id, "has a successor that does not exist");
        ++waits[after];
      }
    }
    std::vector<uint32_t> ready;
    for (size_t id = 0; id < p.ops.size(); ++id) {
      if (waits[id] != p.ops[id].num_dependencies) {
        fail(rank, id,
             "counts " + std::to_string(p.ops[id].num_dependencies) + " dependencies, has " +
                 std::to_string(waits[id]));
      }
      if (waits[id] == 0) ready.push_back(static_cast<uint32_t>(id));
    }
    HappensBefore order(p);
    size_t done = 0;
    for (; done < ready.size(); ++done) {
      const uint32_t id = ready[done];
      for (uint32_t after : p.successors_of(p.ops[id])) {
        order.add(id, after);
        if (--waits[after] == 0) ready.push_back(after);
      }
    }
    if (done < p.ops.size()) {
      const auto stuck = std::find_if(waits.begin(), waits.end(), [](auto w) { return w > 0; });
      fail(rank, static_cast<size_t>(stuck - waits.begin()), "waits for itself (a cycle)");
    }

    std::vector<std::vector<std::pair<size_t, bool>>> users(num_locations(rank));
    for (size_t id = 0; id < p.ops.size(); ++id) {
      for (const Access& access : accesses(p, p.ops[id])) {
        for (const auto& [other, other_writes] : users[location(rank, access.block)]) {
          if (other == id || !(access.writes || other_writes) || order.ordered(other, id)) continue;
          fail(rank, id,
               "races with op " + std::to_string(other) + " (" + to_string(p, p.ops[other]) + ")");
        }
        users[location(rank, access.block)].push_back({id, access.writes});
      }
    }
  }

  // All ranks together: messages and values.

  void match_messages() {
    std::map<std::tuple<int, int, int>, size_t> sends;
    for (int rank = 0; rank < n_; ++rank) {
      for_each_op(rank, OpKind::kSend, [&](size_t id, const Op& op) {
        if (!sends.insert({{rank, op.peer, op.message}, id}).second) {
          fail(rank, id, "has the id of another message to that rank");
        }
      });
      matches_.emplace_back(plan(rank).ops.size());
    }
    for (int rank = 0; rank < n_; ++rank) {
      for_each_op(rank, OpKind::kRecv, [&](size_t id, const Op& op) {
        const auto send = sends.find({op.peer, rank, op.message});
        if (send == sends.end())
          fail(rank, id, "waits for a message that nobody sends, or that another op receives");
        const auto& [key, send_id] = *send;
        const Op& sent = plan(op.peer).ops[send_id];
        if (plan(op.peer).sources_of(sent)[0].is_coded() != op.destination.is_coded()) {
          fail(rank, id, "takes coded bytes for elements, or elements for coded bytes");
        }
        if (length(op.peer, sent.length_of) != length(rank, op.length_of)) {
          fail(rank, id,
               "receives a message of another length (" + to_string(plan(op.peer), sent) + ")");
        }
        matches_[static_cast<size_t>(rank)][id] = send_id;
        matches_[static_cast<size_t>(op.peer)][send_id] = id;
        sends.erase(send);
      });
    }
    if (!sends.empty()) {
      const auto& [key, id] = *sends.begin();
      fail(std::get<0>(key), id, "sends a message that nobody receives");
    }
  }

  template <typename Visit>
  void for_each_op(int rank, OpKind kind, Visit visit) const {
    const Plan& p = plan(rank);
    for (size_t id = 0; id < p.ops.size(); ++id) {
      const Op& op = p.ops[id];
      if (op.kind != kind) continue;
      if (op.peer < 0 || op.peer >= n_ || op.peer == rank) fail(rank, id, "has no such peer");
      visit(id, op);
    }
  }

  struct Value {
    int node = kUndefined;
    Length length;
  };

  struct Progress {
    std::vector<uint32_t> waits;           // by op
    std::vector<char> started;             // by op: its dependencies are complete
    std::vector<std::vector<bool>> heard;  // by op: ranks known to have begun, when it starts
    std::vector<bool> heard_at_end;
    size_t completed = 0;
  };

  void execute() {
    for (int rank = 0; rank < n_; ++rank) {
      const Plan& p = plan(rank);
      std::vector<Value> values(num_locations(rank));
      for (int part = 0; part < num_inputs(rank); ++part) {
        values[static_cast<size_t>(part)] = {input_value(rank, part),
                                             length(rank, Block::input(part))};
      }
      values_.push_back(std::move(values));

      std::vector<bool> itself(static_cast<size_t>(n_));
      itself[static_cast<size_t>(rank)] = true;
      Progress progress{{},
                        std::vector<char>(p.ops.size()),
                        std::vector<std::vector<bool>>(p.ops.size(), itself),
                        itself,
                        0};
      for (size_t id = 0; id < p.ops.size(); ++id) {
        progress.waits.push_back(p.ops[id].num_dependencies);
        if (p.ops[id].num_dependencies == 0) ready_.push_back({rank, id});
      }
      progress_.push_back(std::move(progress));
    }
    while (!ready_.empty()) {
      const auto [rank, id] = ready_.back();
      ready_.pop_back();
      start(rank, id);
    }
    for (int rank = 0; rank < n_; ++rank) {
      const Progress& progress = progress_[static_cast<size_t>(rank)];
      if (progress.completed == plan(rank).ops.size()) continue;
      const auto stuck = std::find(progress.started.begin(), progress.started.end(), 1);
      fail(rank, static_cast<size_t>(stuck - progress.started.begin()),
           "never completes: deadlock");
    }
  }

  /// A message is delivered when both its ends have started, as in a rendezvous.
  void start(int rank, size_t id) {
    const Plan& p = plan(rank);
    const Op& op = p.ops[id];
    Progress& progress = progress_[static_cast<size_t>(rank)];
    progress.started[id] = 1;
    if (op.kind == OpKind::kCopy) {
      const Block source = p.sources_of(op)[0];
      const int value = read(rank, id, source);
      write(rank, op, encodes(op, source) ? expressions_.coded(value) : value);
      complete(rank, id, progress.heard[id]);
    } else if (op.kind == OpKind::kReduce) {
      const int value = fold(rank, id);
      write(rank, op, op.destination.is_coded() ? expressions_.coded(value) : value);
      complete(rank, id, progress.heard[id]);
    } else {
      const size_t other = matches_[static_cast<size_t>(rank)][id];
      if (!progress_[static_cast<size_t>(op.peer)].started[other]) return;
      if (op.kind == OpKind::kSend) {
        deliver(rank, id, op.peer, other);
      } else {
        deliver(op.peer, other, rank, id);
      }
    }
  }

  static bool encodes(const Op& op, Block source) {
    return op.destination.is_coded() && !source.is_coded();
  }

  void deliver(int sender, size_t send, int receiver, size_t recv) {
    const Plan& p = plan(sender);
    write(receiver, plan(receiver).ops[recv], read(sender, send, p.sources_of(p.ops[send])[0]));
    const std::vector<bool> sender_heard = progress_[static_cast<size_t>(sender)].heard[send];
    std::vector<bool> receiver_heard = progress_[static_cast<size_t>(receiver)].heard[recv];
    add(receiver_heard, sender_heard);
    // That a send is complete says nothing about the receiver: it may have been buffered.
    complete(sender, send, sender_heard);
    complete(receiver, recv, receiver_heard);
  }

  void complete(int rank, size_t id, const std::vector<bool>& heard) {
    const Plan& p = plan(rank);
    Progress& progress = progress_[static_cast<size_t>(rank)];
    progress.started[id] = 2;
    ++progress.completed;
    add(progress.heard_at_end, heard);
    for (uint32_t after : p.successors_of(p.ops[id])) {
      add(progress.heard[after], heard);
      if (--progress.waits[after] == 0) ready_.push_back({rank, after});
    }
  }

  static void add(std::vector<bool>& to, const std::vector<bool>& from) {
    for (size_t rank = 0; rank < to.size(); ++rank) to[rank] = to[rank] || from[rank];
  }

  int read(int rank, size_t id, Block block) const {
    const Value& value = values_[static_cast<size_t>(rank)][location(rank, block)];
    if (value.node == kUndefined) fail(rank, id, "reads a block that nothing was written to");
    if (value.length != length(rank, plan(rank).ops[id].length_of)) {
      fail(rank, id, "reads a block that was written with another length");
    }
    return value.node;
  }

  void write(int rank, const Op& op, int node) {
    values_[static_cast<size_t>(rank)][location(rank, op.destination)] = {
        node, length(rank, op.length_of)};
  }

  int fold(int rank, size_t id) {
    const Plan& p = plan(rank);
    const Op& op = p.ops[id];
    std::vector<int> children;
    for (const Block& source : p.sources_of(op)) children.push_back(read(rank, id, source));
    for (int child : children) {
      const Node& node = expressions_.at(child);
      if (node.data != expressions_.at(children.front()).data) {
        fail(rank, id, "folds different elements together");
      }
      if (node.is_final) fail(rank, id, "folds a result that was final already");
    }
    const int result = expressions_.fold(children, op.is_final);
    const std::vector<int>& counts = expressions_.at(result).counts;
    for (int source = 0; source < n_; ++source) {
      const int count = counts[static_cast<size_t>(source)];
      const auto contribution = [&] {
        return "the contribution of rank " + std::to_string(source);
      };
      if (count > 1) fail(rank, id, "counts " + contribution() + " twice");
      if (op.is_final && count == 0) fail(rank, id, "is final without " + contribution());
    }
    return result;
  }

  // The promises.

  void check_results(int rank) {
    const auto value = [&](Block block) {
      return values_[static_cast<size_t>(rank)][location(rank, block)].node;
    };
    const auto expect = [&](Block block, int node) {
      if (value(block) == node) return;
      const char* space = block.space == Space::kInput ? "input" : "output";
      fail(rank, std::string(space) + " part " + std::to_string(block.index) +
                     (block.space == Space::kInput ? " is not what it was" : " is wrong"));
    };
    const bool keeps_input = !is_in_place() || (op_ == Collective::kReduce && rank != root_);
    if (keeps_input) {
      for (int i = 0; i < num_inputs(rank); ++i) expect(Block::input(i), input_value(rank, i));
    }
    switch (op_) {
      case Collective::kReduce:
        if (rank != root_) break;
        [[fallthrough]];
      case Collective::kAllReduce:
      case Collective::kReduceScatter:
        for (int i = 0; i < num_outputs(rank); ++i) {
          check_sum(rank, i, value(Block::output(i)));
          const Block block = Block::output(i);
          if (op_ != Collective::kAllReduce) continue;
          if (value(block) != values_[0][location(0, block)].node) {
            fail(rank, "output part " + std::to_string(i) +
                           " is folded in another order than rank 0's: replicas would differ");
          }
        }
        break;
      case Collective::kBroadcast:
        for (int i = 0; i < num_outputs(rank); ++i) expect(Block::output(i), input_value(root_, i));
        break;
      case Collective::kAllGather:
      case Collective::kGather:
        for (int i = 0; i < num_outputs(rank); ++i) {
          const int input = input_value(i, 0);
          expect(Block::output(i), plan(rank).num_coded > 0 ? expressions_.coded(input) : input);
        }
        break;
      case Collective::kAllToAll:
        for (int i = 0; i < n_; ++i) expect(Block::output(i), input_value(i, rank));
        break;
      case Collective::kScatter:
        expect(Block::output(0), input_value(root_, rank));
        break;
      case Collective::kBarrier: {
        const auto& heard = progress_[static_cast<size_t>(rank)].heard_at_end;
        const auto silent = std::find(heard.begin(), heard.end(), false);
        if (silent != heard.end()) {
          fail(rank,
               "may leave before rank " + std::to_string(silent - heard.begin()) + " has entered");
        }
        break;
      }
    }
  }

  void check_sum(int rank, int part, int value) const {
    const std::string output = "output part " + std::to_string(part);
    if (value == kUndefined) fail(rank, output + " is never written");
    const Node& node = expressions_.at(value);
    if (node.data != length(rank, Block::output(part))) fail(rank, output + " is another part");
    for (int source = 0; source < n_; ++source) {
      if (node.counts[static_cast<size_t>(source)] != 1) {
        fail(rank, output + " lacks the contribution of rank " + std::to_string(source));
      }
    }
    if (n_ == 1) return;
    if (!node.is_final) fail(rank, output + " has passed no final reduce");
    if (!plan(rank).rounds_once) return;
    for (int source = 0; source < n_; ++source) {
      const auto child = static_cast<size_t>(source);
      if (node.children.size() != static_cast<size_t>(n_) ||
          !expressions_.at(node.children[child]).children.empty()) {
        fail(rank, output + " is rounded more than once, against the Plan's claim");
      }
      if (expressions_.at(node.children[child]).counts[child] != 1) {
        fail(rank, output + " is not folded in rank order, as a Plan that rounds once must");
      }
    }
  }

  const Plan& plan(int rank) const { return plans_[static_cast<size_t>(rank)]; }

  [[noreturn]] void fail(int rank, const std::string& what) const {
    throw Error(ErrorCode::kInternal, "bad Plan: " + std::string(to_string(op_)) + ' ' +
                                          plan(rank).algorithm + ", rank " + std::to_string(rank) +
                                          " of " + std::to_string(n_) + ": " + what);
  }

  [[noreturn]] void fail(int rank, size_t id, const std::string& what) const {
    fail(rank, "op " + std::to_string(id) + " (" + to_string(plan(rank), plan(rank).ops[id]) +
                   ") " + what);
  }

  std::span<const Plan> plans_;
  int n_;
  Collective op_;
  int root_;
  Expressions expressions_;
  std::vector<std::vector<size_t>> matches_;  // [rank][send or recv]: the op at the other end
  std::vector<std::vector<Value>> values_;    // [rank][location]
  std::vector<Progress> progress_;            // by rank
  std::vector<std::pair<int, size_t>> ready_;
};

}  // namespace

void check_plans(std::span<const Plan> plans) {
  if (plans.empty()) throw Error(ErrorCode::kInternal, "no Plans to check");
  Checker(plans).run();
}

}  // namespace q7x2
