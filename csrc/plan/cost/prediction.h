// What a cost function is asked and what it answers: SimulatedCall, CodingCost, and Prediction.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace q7x2 {

/// What a codec does to coded blocks, where a call has one.
struct CodingCost {
  static constexpr double kAtOnce = std::numeric_limits<double>::infinity();

  /// Costs of a message. Rates are in bytes of elements per second, on one core.
  struct Message {
    double ratio = 1;  ///< coded bytes for a byte of elements
    double encode_rate = kAtOnce;
    double decode_rate = kAtOnce;

    bool operator==(const Message&) const = default;
  };

  /// By the contributions that a message is the sum of, from one; the last one is that of all
  /// longer sums. Sums of sparse contributions fill up.
  std::vector<Message> messages = {{}};
  double select_rate = kAtOnce;  ///< rate of the pass over the tensor before anything is sent
  /// Bytes of the elements that share a scale. All parts but the last ones hold whole groups.
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
  /// The connections between hosts have been silent for longer than TCP's timeout, 0.2 s and a
  /// round trip: they begin anew with model::kFirstFlight.
  bool after_silence = false;
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

  double seconds = 0;                ///< time of one of many calls in a row
  double seconds_after_pause = 0;    ///< the same where wires have saved up their bursts
  double seconds_after_silence = 0;  ///< see SimulatedCall; 0: not simulated
  double first_slice_seconds = 0;    ///< until the first slice is complete on all ranks
  std::vector<Load> loads;           ///< those that are in use
  int bottleneck = -1;               ///< the busiest of `loads`; -1: none is in use
  std::vector<Step> timeline;
};

}  // namespace q7x2
