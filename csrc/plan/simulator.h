// Simulator: the Plans of all ranks, run on a virtual clock over a Fabric.
//
// It is the one cost function there is: the planner chooses by it, and `q7x2 plan explain` and
// `q7x2 simulate` show what it says. It runs what the executor would run, op by op, slice by slice
// and with the executor's window, and counts time in this model:
//
//   wire    A message passes the resources of its route one after the other, and begins to leave
//           each as soon as it begins to enter it (cut-through), so it takes alpha + bytes / (least
//           rate) between idle hosts. A resource serves first come, first served.
//   burst   After a pause a wire lets Fabric::burst bytes pass at once. The call is one of many in
//   a
//           row: it begins with what a pause leaves, and takes no less than what its busiest wire
//           needs for its bytes.
//   offer   Messages of more than model::kEagerBytes between hosts wait for their receiver: an
//   offer
//           and its answer take one alpha each before the data may leave.
//   CPU     A rank does one thing at a time: `overhead` at each end of a message, folds, copies. A
//           machine has as many servers as cores; the ranks of its hosts (several, where those are
//           containers) take turns where they are more than that.
//   codecs  A coded block takes its codec's time to make and to read, and its messages are shorter,
//           by how many contributions they are the sum of. A selection sees the tensor first.
//   memory  Within a host the sender copies a block into shared memory, once however many receive
//           it. The receiver copies it out, or reads it where it lies if its block is scratch.
//
// Everything is counted in the order of events: all ranks that ask get the same answer, bit for
// bit. Equal times count in the order in which they came up, and with a Symmetry in one that turns
// keep.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fabric/fabric.h"
#include "plan/plan.h"
#include "plan/site.h"
#include "plan/symmetry.h"

namespace q7x2 {

/// What a codec does to coded blocks, where a call has one.
struct CodingCost {
  static constexpr double kAtOnce = std::numeric_limits<double>::infinity();

  /// Of a message; rates are in bytes of elements a second, on one core.
  struct Message {
    double ratio = 1;  ///< coded bytes for a byte of elements
    double encode_rate = kAtOnce;
    double decode_rate = kAtOnce;

    bool operator==(const Message&) const = default;
  };

  /// By the contributions that a message is the sum of, from one; the last one is that of all
  /// longer sums. Sums of sparse contributions fill up.
  std::vector<Message> messages = {{}};
  double select_rate = kAtOnce;  ///< of the pass over the tensor before anything is sent
  /// Of the elements that share a scale. All parts but the last ones hold whole groups.
  size_t group_bytes = 4096;

  const Message& of(size_t contributions) const {
    return messages[std::min(std::max<size_t>(contributions, 1), messages.size()) - 1];
  }

  bool operator==(const CodingCost&) const = default;
};

/// One call, cut into slices as the executor would do it; see Choice.
struct SimulatedCall {
  /// Flat collectives: bytes of the buffer. Others: of each part.
  size_t bytes = 0;
  size_t slice_bytes = 64;
  int window = 1;
  /// After that many slices the rest is extrapolated; 0: as many as a steady state takes.
  int max_slices = 0;
  bool trace = false;  ///< fill Prediction::timeline
};

struct Prediction {
  /// What a resource of the Fabric, or the cores of a machine, had to do.
  struct Load {
    std::string name;  ///< "egress h0", "cores h3"
    double bytes = 0;  ///< none for cores
    double busy = 0;   ///< seconds it was in use; for cores on average over them
  };
  /// An op as it ran. A send begins when its rank turns to it, a receive when its data sets out.
  struct Step {
    int rank = 0;
    uint32_t slice = 0;
    uint32_t op = 0;  ///< index into the Plan's ops
    double begin = 0;
    double end = 0;
  };

  double seconds = 0;              ///< of one of many calls in a row
  double seconds_after_pause = 0;  ///< the same where wires have saved up their bursts
  double first_slice_seconds = 0;  ///< until the first slice is complete on all ranks
  std::vector<Load> loads;         ///< that are in use at all
  int bottleneck = -1;             ///< the busiest of `loads`; -1: none is in use
  std::vector<Step> timeline;
};

/// The Plans of one algorithm, ready to be run for any size and slicing.
class Simulator {
 public:
  /// `plans` by member; they and the `fabric` must stay. Throws Error(kInvalidArgument) where a
  /// message is sent that nobody receives, or the reverse.
  Simulator(std::span<const Plan> plans, const Fabric& fabric, const CodingCost& coding = {});

  /// `plans`: those of the ranks that stand for all, of a Schedule with such a turn.
  Simulator(std::span<const Plan> plans, const Fabric& fabric, const CodingCost& coding,
            const Symmetry& symmetry);

  /// Throws Error(kInvalidArgument) where the Plans wait for each other for ever.
  Prediction run(const SimulatedCall& call) const;

  /// The same for a few ranks that stand for all: what all ranks return with a Symmetry in which
  /// each stands for itself, but for the rounding of the sum of what the ranks of one machine did.
  /// `run` returns the same, unless events at one time meet at a core or a wire. Then it lets ranks
  /// with lower numbers go first. Empty if parts have different lengths.
  std::optional<Prediction> run_symmetric(const SimulatedCall& call) const;

  /// Seconds that no schedule of these Plans can beat: what the busiest resource has to do.
  double bound(const SimulatedCall& call) const;

  /// The smallest share that a sender has of a NIC: its rate, in bytes a second, by the number of
  /// hosts that send to it. Infinite where no NIC has several.
  double incast_rate() const { return incast_rate_; }

 private:
  friend class SimulatedRun;

  /// What is to be known of an op while it runs. The ops of all ranks are counted through. Two fit
  /// into a cache line: a run of many ranks does little but wait for memory.
  struct alignas(32) Task {
    uint32_t rank = 0;
    uint32_t partner = 0;  ///< the receive of a send, the send of a receive
    uint32_t route = 0;    ///< of a send and of a receive: index into `paths_`
    uint32_t first_successor = 0;
    uint32_t num_successors = 0;  ///< see Op
    uint32_t sources = 0;
    /// Of a send of a coded block: how many its message is the sum of; 0: it is not coded. Of a
    /// reduction: how many of its sources are coded.
    uint32_t contributions = 0;
    uint16_t part = 0;  ///< whose length it has
    OpKind kind = OpKind::kCopy;
    bool local : 1 = false;           ///< a message within a host
    bool staged : 1 = false;          ///< an earlier send left the block in shared memory
    bool folded : 1 = false;          ///< the fold leaves it there, from the nearest cache
    bool to_part : 1 = false;         ///< it writes to the caller's buffer
    bool codes : 1 = false;           ///< a copy that encodes or decodes
    bool takes_residual : 1 = false;  ///< see Op
  };
  struct Path {
    uint32_t first = 0;  ///< index into `hops_`
    uint32_t hops = 0;   ///< resources
    uint32_t cost = 0;   ///< index into `costs_`
  };
  /// What a message takes beside its bytes.
  struct Cost {
    double alpha = 0;
    double overhead = 0;
  };

  std::span<const uint32_t> successors_of(const Task& task) const {
    return {plans_[task.rank].successors.data() + task.first_successor, task.num_successors};
  }
  size_t resource(const Path& path, uint32_t hop) const { return hops_[path.first + hop]; }
  const Cost& cost_of(uint32_t task) const { return costs_[paths_[tasks_[task].route].cost]; }
  Simulator(std::span<const Plan> plans, const Fabric& fabric, const CodingCost& coding,
            std::optional<Symmetry> symmetry);

  const Op& op(uint32_t index) const;
  // What is simulated for a member, a resource, a machine.
  size_t of_member(int member) const {
    return symmetry_ ? symmetry_->of_rank(member) : static_cast<size_t>(member);
  }
  size_t of_resource(size_t resource) const {
    return symmetry_ ? symmetry_->of_resource(resource) : resource;
  }
  size_t of_machine(size_t machine) const {
    return symmetry_ ? symmetry_->of_machine(machine) : machine;
  }
  size_t machine_of(uint32_t rank) const {
    return of_machine(site_.machines.of(static_cast<int>(rank)));
  }
  /// Finds the receive of each send, and the other way round.
  void match_messages();
  void find_paths();
  void find_rates(double burst);
  /// CPU seconds that an op takes on its rank for `bytes` bytes of elements.
  double work(uint32_t index, size_t bytes) const;
  /// Fills in `Task::contributions` and `coding_seconds_`.
  void count_contributions();
  /// Seconds until all ranks of the busiest machine have selected what they send.
  double selection(const SimulatedCall& call) const;
  /// Bytes a second that a resource lets through of a message.
  double rate(size_t resource, double message_bytes) const;
  /// The length of a send's message for `bytes` bytes of elements.
  double message_bytes(uint32_t send, size_t bytes) const;

  std::span<const Plan> plans_;
  const CodingCost coding_;
  const Site site_;
  const std::optional<Symmetry> symmetry_;
  std::vector<uint32_t> first_task_;  // by rank, and the total at the end
  std::vector<Task> tasks_;
  std::vector<double> coding_seconds_;  // of a byte of elements, by task; empty: nothing is coded
  std::vector<double> copy_rates_;      // by rank
  std::vector<double> reduce_rates_;    // by rank
  std::vector<Path> paths_;             // one for each pair of hosts that talks
  std::vector<uint32_t> hops_;          // resources
  std::vector<Cost> costs_;             // the different ones
  std::vector<double> rates_;           // by resource, in bytes a second, of long messages
  std::vector<double> bursts_;          // by resource, in bytes
  double incast_rate_ = std::numeric_limits<double>::infinity();
};

}  // namespace q7x2
