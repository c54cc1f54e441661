// Plan: what one rank does in one collective, as a small DAG of ops over blocks.
//
// A Plan is a *template*. It does not know the length of the data: the executor cuts the data into
// slices, and runs the whole DAG once per slice, a bounded window of slices at a time. So the
// length of a Plan depends on the number of messages that a rank sends per slice, not on the size.
//
// Data is addressed by blocks. A collective has an input and an output buffer, each divided into
// parts (see `Shape`), and a Plan may ask for scratch blocks, each as long as the longest part of a
// slice. Ops name blocks, never pointers.
//
// A *coded* block is a scratch block that holds a message of a codec (kernels/codec/codec.h)
// instead of elements. The work of an op follows from its blocks: a copy to a coded block encodes,
// a copy from one decodes. A reduce decodes its coded sources, adds in fp32, and encodes its result
// if the destination is coded. Messages between coded blocks are as long as the codec made them.
// Ops that take the residual add this rank's earlier errors to what they read, and store the new
// errors.
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
// There are two kinds of shape. `kFlat` (all_reduce, reduce, broadcast): the buffer is one run of
// elements. A slice is a consecutive piece of it, and is divided into parts in proportion to
// `part_weights`, so slices complete in order. `kBlocked` (the others): each part is its own buffer
// with its own length, and slice k of a part is its k-th chunk. Parts may have different lengths; a
// part that has no k-th chunk is empty in slice k. Ops on empty blocks do nothing, send nothing and
// receive nothing, at both ends.
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
  /// Whether it is a part of the caller's input or output, with a length and a position in the
  /// data.
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
  /// kReduce: the result is the value of the collective, so the mean is computed here.
  bool is_final = false;
  /// kReduce, kCopy: this rank's residual of these elements, if the call has any, is added to the
  /// result, and what the result cannot represent becomes the new residual. A copy that encodes
  /// always does so. A copy from input to a scratch block may be skipped if there is no residual,
  /// because the input does not change until the scratch block is no longer read.
  bool takes_residual = false;
  uint16_t message = 0;  ///< kSend, kRecv: the message id
  /// kSend: sends with the same stage carry the same bytes, so these are written to shared memory
  /// only once.
  /// kReduce, and kCopy that encodes or takes the residual: the stage that carries its result, if
  /// there is one.
  uint16_t stage = kNoStage;
  int32_t peer = -1;  ///< kSend, kRecv: the other rank
  Block destination;  ///< kRecv, kCopy, kReduce
  uint32_t first_source = 0;
  uint32_t num_sources = 0;  ///< in Plan::sources; kSend and kCopy have one
  /// The input or output part that gives this op's length: all its blocks have that many bytes in
  /// each slice, coded ones before encoding. Scratch blocks have no length of their own.
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
  /// Number of aggregators: members of the Schedule that have no rank, no input and no output. They
  /// are numbered from `world_size` on. Their ops name parts of the buffers only to give lengths.
  int helpers = 0;

  /// kFlat shapes: how a slice is divided into parts; one weight per part.
  std::vector<uint32_t> part_weights;
  /// sums of the weights before each part; the last one is the total
  std::vector<uint64_t> part_prefix;
  uint16_t num_scratch = 0;
  uint16_t num_coded = 0;
  uint16_t num_stages = 0;

  std::vector<Op> ops;
  std::vector<Block> sources;
  std::vector<uint32_t> successors;

  /// Whether each contribution to a result is rounded only once, when `is_final` is reached. Floats
  /// of 16 and 8 bits need that.
  bool rounds_once = false;

  /// The edges whose messages are coded.
  Edges edges = Edges::kNone;
  /// Whether the Plan is for a call with a codec, on any edges: then it adds the residual of each
  /// rank to that rank's contribution, once.
  bool takes_residuals = false;

  /// All message ids are less than this.
  static constexpr int kMaxMessages = 1 << 12;

  int num_members() const { return world_size + helpers; }
  std::span<const Block> sources_of(const Op& op) const {
    return {sources.data() + op.first_source, op.num_sources};
  }
  std::span<const uint32_t> successors_of(const Op& op) const {
    return {successors.data() + op.first_successor, op.num_successors};
  }
  /// kFlat shapes: the first element of part `part` in a slice of `elements` elements. The part
  /// ends where part `part + 1` begins. With the prefix sums W of the weights this is
  /// floor(elements * W[part] / W[parts]), computed without overflow. A slice with few elements has
  /// empty parts.
  size_t part_begin(size_t elements, size_t part) const {
    if (part == 0) return 0;
    if (part + 1 == part_prefix.size()) return elements;
    const uint64_t total = part_prefix.back();
    return elements / total * part_prefix[part] + elements % total * part_prefix[part] / total;
  }
};

/// Builds a Plan op by op. Message ids are assigned in the order of the calls: the k-th send to a
/// peer matches the peer's k-th receive from this rank. So generators must emit both in the same
/// order, or give each message an id.
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
  /// may be overwritten. `length_of` is optional if one of the op's blocks is not scratch.
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

  /// Computes successors, stages and the number of scratch blocks. To be called once, at the end.
  Plan build();

 private:
  OpId add(Op op, std::span<const Block> sources, std::span<const OpId> after,
           std::optional<Block> length_of);
  uint16_t message_to(int peer, std::vector<uint16_t>& counters, std::optional<int> message);

  Plan plan_;
  std::vector<std::vector<OpId>> after_;
  /// By what a send carries: its source, and the ops that it waits for.
  std::map<std::tuple<Space, uint16_t, std::vector<OpId>>, uint16_t> stages_;
  std::vector<uint16_t> next_send_;  // by peer
  std::vector<uint16_t> next_recv_;
};

/// The scratch blocks of a Plan, including coded ones, hold at most this many times the world size
/// times the bytes of a slice. With a blocked shape, a slice comprises a slice of each of n parts.
inline constexpr int kMaxScratchSlices = 2;

/// True for collectives whose buffers are flat runs of elements (all_reduce, reduce, broadcast).
bool is_flat(Collective op);

/// Whether the collective has a root.
bool is_rooted(Collective op);

/// Whether the collective folds contributions.
bool is_reduction(Collective op);

/// The Plan as text, one op per line, for people and for tests; and a single op of it, for example
/// "recv #0 from 2 -> scratch[1], length of out[3]".
std::string to_string(const Plan& plan);
std::string to_string(const Plan& plan, const Op& op);

}  // namespace q7x2
