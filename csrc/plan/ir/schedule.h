// Schedule: what all ranks of a group do in one collective, as one program that is symbolic in the
// rank.
//
// A generator returns a Schedule. It holds three things:
//
//   contract   whose data counts, who gets the result. Helpers, which only aggregate, are members
//              without a rank
//   rounds     what travels where, in a form that the cost model reads in O(n log n) steps,
//   whatever
//              the number of messages
//   program    what one rank does: `project(rank)` is that rank's Plan
//
// Nothing of size n^2 is built: tables that the program needs (the order of the ranks, trees) are
// made once and shared by all projections. A test holds the rounds to the Plans: both move the same
// bytes, in the same number of messages, over the same links.
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

/// What a Schedule is asked for. Equal on all ranks of the group.
struct ScheduleRequest {
  Collective collective;
  int world_size = 1;
  int root = -1;  ///< rooted collectives only
  /// What is known of the group's hosts; null: nothing, all ranks are equally near.
  const Fabric* fabric = nullptr;
  /// Algorithms with a parameter ("aggregator:2"): its value; see Generator::parameters.
  int parameter = 0;
  /// Each sum is made by one rank, and not by several at once, where the algorithm has the choice:
  /// what is encoded is then half as much, and results may travel as they were encoded.
  bool wants_owners = false;
  /// The row in which algorithms line up the ranks; null: the one that suits the Fabric.
  const std::vector<int>* order = nullptr;
};

/// What a Schedule promises; the checker holds it to that.
struct Contract {
  std::vector<int> contributors;  ///< whose input counts, ascending
  std::vector<int> receivers;     ///< whose output is written, ascending
  /// A reduction's result holds at least so many contributions, and none twice.
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
  double share =
      1;  ///< length of each message: of a slice if the collective is flat, else of a part
};

/// A list of ranks, which several crosses may name.
using Team = std::shared_ptr<const std::vector<int>>;
Team team_of(std::vector<int> ranks);

/// Messages from each of some ranks to each of others, none to itself.
struct Cross {
  Team from, to;
  uint32_t messages = 1;
  double share = 1;
  bool off_diagonal = false;  ///< and none from the i-th of these to the i-th of those
};

/// What travels at the same time.
struct Round {
  std::vector<Edge> edges = {};
  std::vector<Cross> crosses = {};
  int repeats = 1;  ///< so many rounds like this one after the other
  int turns = 1;    ///< not all edges at once: they take turns, so many
  /// Of alpha; less where messages set out before the last round's have arrived.
  double latency = 1;
  bool folds = false;          ///< receivers add what comes to what they hold; else they keep it
  bool same_data = false;      ///< what one rank sends to several is the same
  Edges coded = Edges::kNone;  ///< over which messages of a codec travel instead of elements
  double contributions = 1;    ///< that a message is the sum of
};

class Schedule {
 public:
  using Program = std::function<void(PlanBuilder& builder, int rank)>;

  /// `part_weights`: see Plan; they mean nothing where the collective is not flat.
  Schedule(const ScheduleRequest& request, const std::string& algorithm,
           std::vector<uint32_t> part_weights = {1});

  /// Everything else is for generators, and to be called before the first projection.
  void set_program(Program program) { program_ = std::move(program); }
  void add_round(Round round);
  /// In place of what c10d promises.
  void set_contract(Contract contract) { contract_ = std::move(contract); }
  /// See Plan::helpers.
  void set_helpers(int count) { header_.helpers = count; }
  /// See Plan::rounds_once.
  void set_rounds_once() { header_.rounds_once = true; }
  /// Turning all ranks by `ranks`, from r to r + ranks and from the last ones to the first, makes
  /// the same Schedule: op i of rank r + ranks is op i of rank r with all peers turned. Parts and
  /// the order of operands may differ. A simulation of a few ranks then stands for all.
  /// `messages_of_parts`: there is a part for each rank, messages are numbered by phase and part,
  /// and turned with the parts.
  void set_turn(int ranks, bool messages_of_parts = false) { turn_ = {ranks, messages_of_parts}; }
  /// The most scratch blocks, coded ones among them, that a rank has. Where a program does not use
  /// one for each message that it folds.
  void set_scratch_blocks(int count) { scratch_blocks_ = count; }
  /// Makes this the Schedule of a call with a codec: see Plan::edges. `blocks`: that its ranks hold
  /// besides, coded ones and those with residuals added.
  void set_coding(Edges edges, int blocks);
  void set_rounds(std::vector<Round> rounds) { rounds_ = std::move(rounds); }

  Collective collective() const { return header_.collective; }
  const std::string& algorithm() const { return header_.algorithm; }
  int world_size() const { return header_.world_size; }
  int root() const { return header_.root; }
  /// Ranks and helpers.
  int num_members() const { return header_.num_members(); }
  const std::vector<uint32_t>& part_weights() const { return header_.part_weights; }
  const Contract& contract() const { return contract_; }
  const std::vector<Round>& rounds() const { return rounds_; }
  /// -1: see set_scratch_blocks.
  int scratch_blocks() const { return scratch_blocks_; }
  int coding_blocks() const { return coding_blocks_; }
  Edges edges() const { return header_.edges; }
  struct Turn {
    int ranks = 0;  ///< 0: none is known
    bool messages_of_parts = false;
  };
  /// See set_turn.
  Turn turn() const { return turn_; }

  /// Equal for Schedules that are equal in all that is above but the program.
  uint64_t digest() const;
  /// Equal for Schedules whose first, middle and last members have equal Plans, whatever the
  /// algorithms are called. Takes the time of projecting them.
  uint64_t plans_digest() const;

  /// One member's Plan, without ops.
  Plan header(int rank) const;
  /// One member's Plan. Thread-safe.
  Plan project(int rank) const;
  /// Those of all members: of the ranks, then of the helpers.
  std::vector<Plan> project_all() const;

 private:
  Plan header_;  // a Plan without ops
  Contract contract_;
  std::vector<Round> rounds_;
  int scratch_blocks_ = -1;
  int coding_blocks_ = 0;
  Turn turn_;
  Program program_;
};

/// n equal parts.
std::vector<uint32_t> equal_parts(int n);

/// The same the other way: what was folded is handed out.
std::vector<Round> backwards(std::vector<Round> rounds, double contributions);

}  // namespace q7x2
