// FlightArchive: what the recorders of this process held whose runtimes have ended.
//
// A program ends its groups before it ends, and with the last group its runtime. Whoever exports
// counters or writes a dump asks later. So a runtime leaves what its recorder holds when it ends.
// The counters of the last kMostGroups groups are kept, and the records of the last runtime.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ledger/flight_reader.h"
#include "ledger/flight_recorder.h"

namespace q7x2 {

/// Thread-safe.
class FlightArchive {
 public:
  static constexpr size_t kMostGroups = 32;

  /// A group whose runtime has ended.
  struct Counted {
    uint64_t process = 0;  ///< the runtime's
    FlightGroup group;
    GroupCounters counters;
  };
  struct Counters {
    int64_t since = 0;            ///< of the last reset, nanoseconds since 1970; 0: there was none
    std::vector<Counted> groups;  ///< the oldest first
  };

  static FlightArchive& of_process();
  /// In a forked child: what is there is the parent's, and another thread may have held its lock.
  static void begin_again();

  /// What a runtime leaves, instead of what it has left before.
  void keep(const FlightBatch& counters, FlightSnapshot&& records);
  Counters counters() const;
  /// Counts begin again at `now`, nanoseconds since 1970: nothing is left of those before.
  void forget_counters(int64_t now);
  /// The records of the runtime that has ended last. Nothing: none has ended yet.
  std::optional<FlightSnapshot> records() const;

 private:
  mutable std::mutex mutex_;
  Counters counters_;
  std::optional<FlightSnapshot> records_;
};

}  // namespace q7x2
