// Plan: what one rank does in one collective, as a small DAG of ops over blocks.
//
// A Plan is a *template*. It does not know how long the data is: the executor cuts the data into
// slices, and runs the whole DAG once for each slice, a bounded window of slices at a time. So the
// length of a Plan grows with the number of messages a rank sends per slice, never with the size.
//
// Data is addressed by blocks. A collective has an input and an output buffer, each divided into
// parts (see `Shape`), and a Plan may ask for scratch blocks, each as long as the longest part of a
// slice. Ops name blocks, never pointers.
//
// A *coded* block is a scratch block that holds a message of a codec (kernels/codec/codec.h) in
// place of elements. What an op does follows from its blocks: a copy to a coded block encodes, a
// copy from one decodes, a reduce decodes its coded sources, adds in fp32, and encodes its result
// where the destination is coded. Messages between coded blocks are as long as the codec made them.
// Ops that take the residual add this rank's errors to what they read, and leave behind what is
// lost.
//
//   collective      input parts   output parts   in place
//   all_reduce      weights       weights        yes: output part i is input part i
//   reduce          weights       weights        yes (only the root writes to it)
//   broadcast       weights       weights        yes (only the root's input counts)
//   all_gather      1             n              no  (the caller may alias input and output[rank])
//   reduce_scatter  n             1              no
//   all_to_all      n             n              no
//   gather          1             n (root), 0    no
//   scatter         n (root), 0   1              no
//   barrier         1             1              yes; one byte that means nothing
//
// Two kinds of shape. `kFlat` (all_reduce, reduce, broadcast): the buffer is one run of elements; a
// slice is a consecutive piece of it, and is divided into parts in proportion to `part_weights`, so
// slices complete in order. `kBlocked` (the others): each part is its own buffer with its own
// length, and slice k of a part is its k-th chunk; parts of different lengths are fine, a part that
// has no k-th chunk is empty there. Ops on empty blocks do nothing, send nothing and receive
// nothing, on both sides.
//
// Every message carries (source, slice, message id). The id is unique among the messages from one
// rank to another within one template.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/types.h"
#include "plan/ir/edge_coding.h"

namespace q7x2 {

enum class Space : uint8_t { kInput, kOutput, kScratch, kCoded };

/// One part of the input or the output, one scratch block, or one coded block.
struct Block {
  Space space = Space::kInput;
  uint16_t index = 0;

  static Block input(int part) { return {Space::kInput, static_cast<uint16_t>(part)}; }
  static Block output(int part) { return {Space::kOutput, static_cast<uint16_t>(part)}; }
  static Block scratch(int slot) { return {Space::kScratch, static_cast<uint16_t>(slot)}; }
  static Block coded(int slot) { return {Space::kCoded, static_cast<uint16_t>(slot)}; }

  bool is_coded() const { return space == Space::kCoded; }
  /// Part of the caller's input or output: it has a length and a place among the elements.
  bool is_part() const { return space == Space::kInput || space == Space::kOutput; }

  bool operator==(const Block&) const = default;
};

enum class OpKind : uint8_t {
  kSend,    ///< source -> message to `peer`
  kRecv,    ///< message from `peer` -> destination
  kCopy,    ///< source -> destination
  kReduce,  ///< sources folded in their order -> destination (which may be one of the sources)
};

struct Op {
  OpKind kind = OpKind::kCopy;
  /// kReduce: the result is the collective's value, so the mean is taken here.
  bool is_final = false;
  /// kReduce, kCopy: this rank's residual of these elements, if the call has any, is added to the
  /// result, and what that cannot hold becomes the residual. A copy that encodes always does so. A
  /// copy of input to a scratch block need not copy where there is no residual: the input stays as
  /// it is until the scratch block is no longer read.
  bool takes_residual = false;
  uint16_t message = 0;  ///< kSend, kRecv: the message id
  /// kSend: sends of one stage carry the same bytes, so they need be put into shared memory once.
  /// kReduce, and kCopy that encodes or takes the residual: the stage that carries its result, if
  /// any.
  uint16_t stage = kNoStage;
  int32_t peer = -1;  ///< kSend, kRecv: the other rank
  Block destination;  ///< kRecv, kCopy, kReduce
  uint32_t first_source = 0;
  uint32_t num_sources = 0;  ///< in Plan::sources; kSend and kCopy have one
  /// The input or output part that this op's length is taken from: all its blocks have that many
  /// bytes in each slice, coded ones before encoding. Scratch blocks have no length of their own.
  Block length_of;
  uint32_t first_successor = 0;
  uint32_t num_successors = 0;  ///< in Plan::successors: ops that wait for this one
  uint32_t num_dependencies = 0;

  static constexpr uint16_t kNoStage = 0xffff;
};

struct Plan {
  Collective collective;
  std::string algorithm;  ///< the generator's name and its parameter: "ring", "aggregator:2"
  int rank = 0;           ///< or the number of a helper, see `helpers`
  int world_size = 1;
  int root = -1;  ///< rooted collectives only
  /// Members of the Schedule that have no rank, neither input nor output: aggregators. They are
  /// numbered from `world_size` on. Their ops name parts of the buffers as lengths only.
  int helpers = 0;

  /// kFlat shapes: how a slice is divided among the parts. Size = number of parts.
  std::vector<uint32_t> part_weights;
  std::vector<uint64_t> part_prefix;  ///< sums of the weights before each part, and of all
  uint16_t num_scratch = 0;
  uint16_t num_coded = 0;
  uint16_t num_stages = 0;

  std::vector<Op> ops;
  std::vector<Block> sources;
  std::vector<uint32_t> successors;

  /// True where each contribution to a result is rounded only once, when `is_final` is reached:
  /// what floats of 16 and 8 bits need.
  bool rounds_once = false;

  /// The edges whose messages are coded.
  Edges edges = Edges::kNone;
  /// The Plan is for a call with a codec, whatever its edges: it adds the residual of each rank to
  /// that rank's contribution, once.
  bool takes_residuals = false;

  /// Message ids are less than this.
  static constexpr int kMaxMessages = 1 << 12;

  int num_members() const { return world_size + helpers; }
  std::span<const Block> sources_of(const Op& op) const {
    return {sources.data() + op.first_source, op.num_sources};
  }
  std::span<const uint32_t> successors_of(const Op& op) const {
    return {successors.data() + op.first_successor, op.num_successors};
  }
  /// kFlat shapes: where part `part` of a slice of `elements` elements begins, in elements. It ends
  /// where part `part + 1` begins. With the prefix sums W this is
  /// floor(elements * W[part] / W[parts]), computed without overflow. A slice of a few elements has
  /// empty parts.
  size_t part_begin(size_t elements, size_t part) const {
    if (part == 0) return 0;
    if (part + 1 == part_prefix.size()) return elements;
    const uint64_t total = part_prefix.back();
    return elements / total * part_prefix[part] + elements % total * part_prefix[part] / total;
  }
};

/// Builds a Plan op by op. Message ids are given out in the order of the calls: the k-th send to a
/// peer meets that peer's k-th receive from this rank, so generators emit both in one order, or
/// else name the id of each message.
///
///   auto got = b.recv(left, Block::scratch(0), {}, Block::input(3));
///   auto sum = b.reduce({{Block::scratch(0), Block::input(3)}}, Block::output(3), true, {{got}});
///   b.send(right, Block::output(3), {{sum}});
class PlanBuilder {
 public:
  using OpId = uint32_t;

  /// `header`: a Plan that has no ops yet.
  explicit PlanBuilder(Plan header);

  /// What the Plan is for.
  const Plan& header() const { return plan_; }

  /// `after`: ops that must be complete before this one starts; a send is complete when its source
  /// may be overwritten. `length_of` may be left out where one of the op's blocks is not scratch.
  OpId send(int peer, Block source, std::span<const OpId> after = {},
            std::optional<Block> length_of = {}, std::optional<int> message = {});
  OpId recv(int peer, Block destination, std::span<const OpId> after = {},
            std::optional<Block> length_of = {}, std::optional<int> message = {});
  OpId copy(Block source, Block destination, std::span<const OpId> after = {},
            std::optional<Block> length_of = {}, bool takes_residual = false);
  /// Sources fold from left to right. `is_final`: see Op.
  OpId reduce(std::span<const Block> sources, Block destination, bool is_final,
              std::span<const OpId> after = {}, std::optional<Block> length_of = {},
              bool takes_residual = false);

  /// Sorts out successors, stages and the scratch count. To be called once, last.
  Plan build();

 private:
  OpId add(Op op, std::span<const Block> sources, std::span<const OpId> after,
           std::optional<Block> length_of);
  uint16_t message_to(int peer, std::vector<uint16_t>& counters, std::optional<int> message);

  Plan plan_;
  std::vector<std::vector<OpId>> after_;
  /// By what a send carries: its source, and what it waits for.
  std::map<std::tuple<Space, uint16_t, std::vector<OpId>>, uint16_t> stages_;
  std::vector<uint16_t> next_send_;  // by peer
  std::vector<uint16_t> next_recv_;
};

/// The scratch blocks of a Plan, coded ones among them, hold at most this many times the world size
/// what a slice holds: of a flat buffer a slice of it, else a slice of each of n parts.
inline constexpr int kMaxScratchSlices = 2;

/// True for collectives whose buffers are flat runs of elements (all_reduce, reduce, broadcast).
bool is_flat(Collective op);

/// True for collectives of which one rank is the root.
bool is_rooted(Collective op);

/// True for collectives that fold contributions.
bool is_reduction(Collective op);

/// The Plan as text, one op a line, for people and for tests; and one op of it, for example
/// "recv #0 from 2 -> scratch[1], length of out[3]".
std::string to_string(const Plan& plan);
std::string to_string(const Plan& plan, const Op& op);

}  // namespace q7x2
