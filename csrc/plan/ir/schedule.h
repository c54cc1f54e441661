// Schedule: what all ranks of a group do in one collective, as one program with the rank as its
// parameter.
//
// A generator returns a Schedule, which has three components:
//
//   contract   whose data counts, and which ranks get the result. Helpers, which only aggregate,
//              have no rank
//   rounds     which messages are sent at the same time, in a form that the cost model reads in
//              O(n log n) steps for any number of messages
//   program    what one rank does: `project(rank)` is that rank's Plan
//
// Nothing has a size of n^2: tables that the program needs (the order of the ranks, trees) are
// computed once and shared by all projections. A test checks that the rounds match the Plans: both
// move the same bytes, in the same number of messages, over the same links.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/types.h"
#include "plan/ir/plan.h"

namespace q7x2 {

struct Fabric;

/// What a generator is asked for. Equal on all ranks of the group.
struct ScheduleRequest {
  Collective collective;
  int world_size = 1;
  int root = -1;  ///< rooted collectives only
  /// What is known about the group's hosts; null: nothing, so all ranks are equally near.
  const Fabric* fabric = nullptr;
  /// Algorithms with a parameter ("aggregator:2"): its value; see Generator::parameters.
  int parameter = 0;
  /// If the algorithm can choose, each sum is computed by one rank instead of by several at once.
  /// Then half as much must be encoded, and results may be passed on in encoded form.
  bool wants_owners = false;
  /// The order in which algorithms arrange the ranks; null: the one that suits the Fabric.
  const std::vector<int>* order = nullptr;
};

/// What a Schedule promises. The checker verifies it.
struct Contract {
  std::vector<int> contributors;  ///< ranks whose input counts, ascending
  std::vector<int> receivers;     ///< ranks whose output is written, ascending
  /// A reduction's result contains at least this many contributions, each at most once.
  int quorum = 0;

  /// What c10d promises for a collective.
  static Contract of(const ScheduleRequest& request);

  bool operator==(const Contract&) const = default;
};

/// Messages from one rank to another.
struct Edge {
  int from = 0;
  int to = 0;
  uint32_t messages = 1;
  /// Size of a message: the part of a slice (flat collective) or of a part (blocked one).
  double share = 1;
};

/// A list of ranks that several crosses may share.
using Team = std::shared_ptr<const std::vector<int>>;
Team team_of(std::vector<int> ranks);

/// Messages from each rank of one list to each rank of another, but none from a rank to itself.
struct Cross {
  Team from, to;
  uint32_t messages = 1;
  double share = 1;
  bool off_diagonal = false;  ///< also none from the i-th rank of `from` to the i-th of `to`
};

/// Messages that are sent at the same time.
struct Round {
  std::vector<Edge> edges = {};
  std::vector<Cross> crosses = {};
  int repeats = 1;  ///< number of rounds like this one, one after the other
  int turns = 1;    ///< number of turns that the edges take, if they are not all used at once
  /// In units of alpha; less than 1 if messages are sent before those of the last round have
  /// arrived.
  double latency = 1;
  bool folds = false;          ///< receivers add the data to theirs; otherwise they store it
  bool same_data = false;      ///< a rank sends the same bytes to all its receivers
  Edges coded = Edges::kNone;  ///< edges on which messages of a codec are sent instead of elements
  double contributions = 1;    ///< number of contributions in a message
};

class Schedule {
 public:
  using Program = std::function<void(PlanBuilder& builder, int rank)>;

  /// A symmetry: if all ranks are turned, the Schedule stays the same. Rank r becomes
  /// r + k * `ranks`, modulo the world size, for each k. Op i of the one is op i of the other with
  /// all peers turned. Parts and the order of operands may differ. A simulation of the first
  /// `ranks` ranks then stands for all.
  struct Turn {
    int ranks = 0;  ///< 0: no symmetry is known
    /// There is one part per rank, messages are numbered by phase and part, and the parts are
    /// turned too.
    bool messages_of_parts = false;
    /// Rank r becomes r ^ (k * `ranks`) instead. Both `ranks` and the world size are powers of two.
    bool flips = false;
  };

  /// `part_weights`: see Plan; ignored if the collective is not flat.
  Schedule(const ScheduleRequest& request, const std::string& algorithm,
           std::vector<uint32_t> part_weights = {1});

  /// The following functions are for generators, and must be called before the first projection.
  void set_program(Program program) { program_ = std::move(program); }
  void add_round(Round round);
  /// Replaces the contract of c10d.
  void set_contract(Contract contract) { contract_ = std::move(contract); }
  /// See Plan::helpers.
  void set_helpers(int count) { header_.helpers = count; }
  /// See Plan::rounds_once.
  void set_rounds_once() { header_.rounds_once = true; }
  /// See Turn.
  void set_turn(Turn turn) { turn_ = turn; }
  /// The largest number of scratch blocks of a rank, including coded ones. Needed if a program does
  /// not use one block per message that it folds.
  void set_scratch_blocks(int count) { scratch_blocks_ = count; }
  /// Makes this the Schedule of a call with a codec: see Plan::edges. `blocks`: the number of
  /// further blocks that its ranks hold: coded ones and those with residuals added.
  void set_coding(Edges edges, int blocks);
  void set_rounds(std::vector<Round> rounds) { rounds_ = std::move(rounds); }

  Collective collective() const { return header_.collective; }
  const std::string& algorithm() const { return header_.algorithm; }
  int world_size() const { return header_.world_size; }
  int root() const { return header_.root; }
  /// Number of ranks and helpers.
  int num_members() const { return header_.num_members(); }
  const std::vector<uint32_t>& part_weights() const { return header_.part_weights; }
  const Contract& contract() const { return contract_; }
  const std::vector<Round>& rounds() const { return rounds_; }
  /// -1: not set, see set_scratch_blocks.
  int scratch_blocks() const { return scratch_blocks_; }
  int coding_blocks() const { return coding_blocks_; }
  Edges edges() const { return header_.edges; }
  Turn turn() const { return turn_; }

  /// Equal for Schedules that are equal in everything above except the program.
  uint64_t digest() const;
  /// Equal for Schedules whose first, middle and last members have equal Plans, even if the
  /// algorithms have different names. Takes as long as projecting these Plans.
  uint64_t plans_digest() const;

  /// The Plan of a member, without ops.
  Plan header(int rank) const;
  /// The Plan of a member. Thread-safe.
  Plan project(int rank) const;
  /// The Plans of all members: first those of the ranks, then those of the helpers.
  std::vector<Plan> project_all() const;

 private:
  Plan header_;  // without ops
  Contract contract_;
  std::vector<Round> rounds_;
  int scratch_blocks_ = -1;
  int coding_blocks_ = 0;
  Turn turn_;
  Program program_;
};

/// The weights of n equal parts.
std::vector<uint32_t> equal_parts(int n);

/// The same rounds in reverse: what was folded is distributed.
std::vector<Round> backwards(std::vector<Round> rounds, double contributions);

}  // namespace q7x2
