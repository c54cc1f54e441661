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
//           a row: it begins with what a pause leaves, and takes no less than what its busiest wire
//           needs for its bytes.
//   window  A connection between far hosts keeps at most Fabric::Pair::window bytes on their way:
//           further ones wait for acknowledgements (SlidingWindow). No message waits until its
//           receiver asks for it: UCX over TCP sends messages of all sizes at once. After a silence
//           a connection sends few bytes in the first round trip, and twice as many in each further
//           one.
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

#include <optional>
#include <span>

#include "fabric/fabric.h"
#include "plan/cost/prediction.h"
#include "plan/cost/simulated_plans.h"
#include "plan/cost/symmetry.h"
#include "plan/ir/plan.h"

namespace q7x2 {

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
  double bound(const SimulatedCall& call) const { return plans_.bound(call); }

  /// The smallest share that a sender has of a NIC: its rate, in bytes a second, by the number of
  /// hosts that send to it. Infinite where no NIC has several.
  double incast_rate() const { return plans_.incast_rate; }

 private:
  SimulatedPlans plans_;
};

}  // namespace q7x2
