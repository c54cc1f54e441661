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
// Everything is counted in the order of events, equal times in the order in which they came up: all
// ranks that ask get the same answer, bit for bit.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "fabric/fabric.h"
#include "plan/plan.h"
#include "plan/site.h"

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

  /// Throws Error(kInvalidArgument) where the Plans wait for each other for ever.
  Prediction run(const SimulatedCall& call) const;

  /// Seconds that no schedule of these Plans can beat: what the busiest resource has to do.
  double bound(const SimulatedCall& call) const;

  /// The smallest share that a sender has of a NIC: its rate, in bytes a second, by the number of
  /// hosts that send to it. Infinite where no NIC has several.
  double incast_rate() const { return incast_rate_; }

 private:
  friend class SimulatedRun;

  struct Message {
    uint32_t receive = 0;  ///< the op that receives it
    uint32_t route = 0;
    bool local = false;
    bool staged = false;         ///< an earlier send left the block in shared memory
    bool folded = false;         ///< the fold leaves it there as it goes, from the nearest cache
    uint32_t contributions = 0;  ///< of a coded block; 0: it is not coded
  };
  struct Path {
    std::vector<int> resources;
    double alpha = 0;
    double overhead = 0;
  };

  const Plan& plan_of(uint32_t index) const;
  const Op& op(uint32_t index) const;
  /// CPU seconds that an op takes on its rank for `bytes` bytes of elements.
  double work(uint32_t index, size_t bytes) const;
  /// Fills in `Message::contributions` and `coding_seconds_`.
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
  // By op, counted through all ranks.
  std::vector<uint32_t> first_op_;  // by rank, and the total at the end
  std::vector<uint32_t> rank_of_;
  std::vector<Message> messages_;       // sends
  std::vector<uint32_t> send_of_;       // receives
  std::vector<double> coding_seconds_;  // of a byte of elements, to read and to make coded blocks
  std::vector<Path> paths_;
  std::vector<double> rates_;   // by resource, in bytes a second, of long messages
  std::vector<double> bursts_;  // by resource, in bytes
  double incast_rate_ = std::numeric_limits<double>::infinity();
};

}  // namespace q7x2
