// Cost model: the time of a Schedule from its rounds, without running it.
//
// All messages of a round set out together, and the next round begins when the last of them has
// been dealt with. A round takes
//
//   latency   alpha, the largest among its messages
//   transfer  the busiest resource's bytes / its rate, or the busiest core's overheads and copies,
//             whichever is longer; and of the shorter the share of one message, since nothing
//             overlaps with the only message. Who sends and who receives may be two cores, which
//             overlap in the same way.
//   fold      what arrived is added up
//
// After a pause a wire lets Fabric::burst bytes pass at once, and a connection between far hosts
// its window. The time of the call is not less than what its busiest resource takes for its bytes.
//
// One slice takes its rounds one after the other. A round that is repeated passes the same data on,
// so that of a ring's hops each has its own latency. Slices overlap: each after the first takes the
// longest of what the busiest resource has to do for it, what the busiest core has to do, and the
// time that a slice stays with one rank divided by the window.
//
// This costs n log n steps for a Schedule once, and a few dozen for each way to cut the data. The
// simulator runs every message, and decides between those that are close (plan/choose/planner.h).
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "plan/cost/prediction.h"
#include "plan/cost/site.h"
#include "plan/cost/tally.h"
#include "plan/ir/schedule.h"

namespace q7x2 {

class CostModel {
 public:
  /// `site` must stay.
  CostModel(const Schedule& schedule, const Site& site, const CodingCost& coding = {});

  double seconds(const SimulatedCall& call) const;
  /// The same, and what each resource has to do.
  Prediction predict(const SimulatedCall& call) const;

  /// Messages of all ranks for one slice.
  double messages() const { return messages_; }
  /// Blocks that the busiest rank holds at once for one slice: scratch, and staged in the memory
  /// that it shares with others.
  size_t scratch_blocks() const { return scratch_blocks_; }
  size_t shared_stages() const { return shared_stages_; }
  /// For each byte of the call, what the busiest wire takes at its full rate.
  double least_wire_seconds() const { return short_wire_; }
  /// See Simulator::incast_rate.
  double incast_rate() const { return incast_rate_; }

 private:
  /// Seconds, as a function of the bytes of a slice.
  struct Time {
    double fixed = 0;
    double per_byte = 0;
    double at(double bytes) const { return fixed + per_byte * bytes; }
    Time& operator+=(const Time& other);
    /// Each of both becomes that of `other` where that is more.
    void raise_to(const Time& other);
  };
  struct Step {
    int repeats = 1;
    int turns = 1;
    double alpha = 0;
    double latency = 1;           // its latency
    double longest_far = 0;       // message to another host, as a share of a slice
    double wire = 0;              // seconds for each byte of a slice, if its messages are long,
    double short_wire = 0;        // and if they are short
    double at_once = 0;           // seconds of that which a burst saves
    double departures = 1;        // messages that the busiest rank sends,
    double arrivals = 1;          // and that it receives
    double least_departures = 1;  // the same if most parts are empty
    double least_arrivals = 1;
    // Times of the busiest core; `fixed` is for all messages.
    Time out = {};
    Time in = {};
    Time both = {};
    Time fold = {};
  };
  /// A connection that does not fill its route.
  struct Window {
    double share = 0;  ///< its share of the call's bytes
    double rate = 0;   ///< bytes per second
    double bytes = 0;  ///< the largest number that passes at once
  };
  /// Steps from the first to the last one that some rank takes part in.
  using Span = std::pair<size_t, size_t>;

  class Cores;
  class Reading;

  void find_rates(const std::vector<int>& senders);
  /// What a rank does for the messages of a round that it sends, and that it receives, and to fold
  /// what they bring.
  Time send(const Round& round, int rank, const Tally::Rank& it, const CodingCost::Message& message,
            bool is_fresh) const;
  Time receive(const Round& round, int rank, const Tally::Rank& it,
               const CodingCost::Message& message) const;
  Time fold(int rank, const Tally::Rank& it, const CodingCost::Message& message) const;
  double seconds(const Step& step, double slice) const;
  double seconds_after_pause(const SimulatedCall& call) const;
  double selection(const SimulatedCall& call) const;

  const Schedule& schedule_;
  const Site& site_;
  const CodingCost coding_;
  std::vector<Step> steps_;
  std::vector<Span> spans_;
  /// Seconds of the busiest resource per byte of a slice.
  double wire_seconds(double slice) const;
  bool is_long(double share, double slice) const;

  double longest_far_ = 0;              // message, as a share of a slice
  double wire_ = 0;                     // seconds a byte of a slice: the busiest resource
  double short_wire_ = 0;               // the same if messages are short
  std::vector<double> resource_bytes_;  // for each byte of a slice
  std::vector<double> rates_;
  std::vector<Window> windows_;
  std::vector<Time> machine_time_;  // over its cores
  Time busiest_;                    // rank, or machine
  double parts_ = 1;
  double messages_ = 0;
  size_t scratch_blocks_ = 1;
  size_t shared_stages_ = 1;
  double incast_rate_;
};

}  // namespace q7x2
