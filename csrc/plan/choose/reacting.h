// Reacting: the links and processors of a group are watched while its calls run, and calls are
// planned anew if they change.
//
//   call of a kind    0 ...      k              2k             3k             4k
//   before it         choice     look           look           look           new choice
//                                rates          rates          rates: one
//                                                              has changed
//
// A *rate sample* precedes every k-th long call of a kind: an all-reduce of what the ranks'
// connections have sent, and of what their processors have done (ledger/rate_watch.h). All ranks
// then hold the same numbers, and decide alike whether a link or a host has changed. If so, the
// Fabric's epoch advances. At the next rate sample before a call of a kind whose choice was made
// for an earlier epoch, rank 0 plans, and the all-reduce carries its new choice instead of rates:
// all others contribute zeros.
//
// k follows from the size of the calls, so ranks know it when they submit them. A rate sample
// happens once per tenth of a second of traffic on the slowest link, and never before short calls.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fabric/rate_changes.h"
#include "ledger/link_meter.h"
#include "ledger/rate_watch.h"
#include "ledger/reduction_meter.h"
#include "ledger/turn_meter.h"
#include "plan/choose/planner.h"

namespace q7x2 {

class Reacting {
 public:
  /// `pause`: on rank 0, the least time between two changes; 0: there are none.
  Reacting(std::shared_ptr<Planner> planner, int rank, std::chrono::milliseconds pause);

  /// How many calls of a kind there are from one rate sample to the next; 0: there are no rate
  /// samples. Equal on all ranks.
  uint64_t calls_between_rate_samples(const CallShape& shape) const;
  /// The length of a rate sample's message, and the most for `world_size` ranks.
  size_t bytes() const;
  static size_t most_bytes(int world_size);

  // Below: under the reactor's lock.

  /// False once rank 0 has said that it does not react.
  bool is_on() const { return is_on_; }
  /// What a rank has counted.
  struct Counts {
    std::vector<Connection> connections;
    ReductionMeter::Done reductions;  ///< since the last rate sample
    std::optional<ThreadTurns> turns;
  };
  /// Writes what this rank has done since the last rate sample.
  void write(std::span<std::byte> message, const Counts& counts);
  /// Reads the sum of what all ranks have written. `pattern`: see RateWatch. True: the epoch has
  /// advanced.
  bool read(std::span<const std::byte> message, uint64_t pattern);

  // Any thread.

  uint64_t epoch() const;
  /// For the Fabric of an epoch. Throws Error(kInternal) where it is long gone.
  std::shared_ptr<Planner> planner(uint64_t epoch) const;
  /// Why the epoch began, for people. Empty for the first one.
  std::string reason(uint64_t epoch) const;
  /// Whether all rates are the same in both. Only of late epochs, and of the first one.
  bool have_same_rates(uint64_t one, uint64_t other) const;

 private:
  struct Edition {
    uint64_t epoch;
    std::shared_ptr<Planner> planner;
    std::string reason;
    RateFactors factors;
  };
  const Edition& edition(uint64_t epoch) const;
  std::optional<RateFactors> factors_of(uint64_t epoch) const;

  const int rank_;
  const std::chrono::milliseconds pause_;
  const std::shared_ptr<const Fabric> measured_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  LinkMeter links_;
  TurnMeter turns_;
  RateWatch watch_;
  bool is_on_ = true;
  mutable std::mutex mutex_;      // guards the editions
  std::deque<Edition> editions_;  // the newest last
};

}  // namespace q7x2
