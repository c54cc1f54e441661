// Reacting: watches the links and processors of a group while its calls run. If they change, calls
// are planned again.
//
//   call of a kind    0 ...      k              2k             3k             4k
//   before it         choice     rate sample    rate sample    rate sample    rate sample
//                                rates          rates          rates: one     new choice
//                                                              has changed
//
// A *rate sample* precedes every k-th long call of a kind. It is an all-reduce of what the ranks'
// connections have sent and what their processors have done (ledger/rate_watch.h). Afterwards all
// ranks have the same numbers, and decide alike whether a link or a host has changed. If so, the
// Fabric's epoch advances. The next rate sample before a call of a kind whose choice was made for
// an earlier epoch carries a new choice instead of rates: rank 0 plans, and all others contribute
// zeros.
//
// k follows from the size of the calls, so ranks know it when they submit them. Rate samples are
// about a tenth of a second of traffic on the slowest link apart. Short calls have none.
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
  /// `pause`: on rank 0, the shortest time between two changes; 0: no changes.
  Reacting(std::shared_ptr<Planner> planner, int rank, std::chrono::milliseconds pause);

  /// The number of calls of a kind from one rate sample to the next; 0: no rate samples. Equal on
  /// all ranks.
  uint64_t calls_between_rate_samples(const CallShape& shape) const;
  /// The length of a rate sample's message in bytes, and the largest such length for `world_size`
  /// ranks.
  size_t bytes() const;
  static size_t most_bytes(int world_size);

  // The functions below are called under the reactor's lock.

  /// False if rank 0 has said that it does not react.
  bool is_on() const { return is_on_; }
  /// The counters of one rank.
  struct Counts {
    std::vector<Connection> connections;
    ReductionMeter::Done reductions;  ///< since the last rate sample
    std::optional<ThreadTurns> turns;
  };
  /// Writes what this rank has done since the last rate sample.
  void write(std::span<std::byte> message, const Counts& counts);
  /// Reads the sum of the messages of all ranks. `pattern`: see RateWatch. Returns whether the
  /// epoch has advanced.
  bool read(std::span<const std::byte> message, uint64_t pattern);

  // Any thread.

  uint64_t epoch() const;
  /// The planner for the Fabric of an epoch. Throws Error(kInternal) if the epoch is no longer
  /// kept.
  std::shared_ptr<Planner> planner(uint64_t epoch) const;
  /// Why the epoch began, for people. Empty for the first epoch.
  std::string reason(uint64_t epoch) const;
  /// Whether both epochs have the same rates. False for epochs that are no longer kept, except the
  /// first.
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
  mutable std::mutex mutex_;      // guards `editions_`
  std::deque<Edition> editions_;  // the newest last
};

}  // namespace q7x2
