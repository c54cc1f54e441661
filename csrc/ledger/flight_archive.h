// FlightArchive: the contents of recorders of this process whose runtimes have ended.
//
// A program ends its groups before it ends, and with the last group its runtime. Counters are
// exported and dumps written later. So a runtime leaves the contents of its recorder here when it
// ends. The archive keeps the counters of the last kMostGroups groups, and the records of the last
// runtime.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
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
    uint64_t process = 0;  ///< number of the runtime's process
    FlightGroup group;
    GroupCounters counters;
  };
  struct Counters {
    int64_t since = 0;  ///< time of the last reset, nanoseconds since 1970; 0: there was none
    std::vector<Counted> groups;  ///< the oldest first
  };

  static FlightArchive& of_process();
  /// For a forked child: the contents belong to the parent, and another thread may have held the
  /// lock.
  static void begin_again();

  /// Stores the records of a runtime that ends. They replace earlier ones of it.
  void keep(const FlightBatch& counters, FlightSnapshot&& records);
  Counters counters() const;
  /// Resets the counters at `now`, nanoseconds since 1970.
  void forget_counters(int64_t now);
  /// The records of the runtime that ended last; nothing if none has ended yet.
  std::optional<FlightSnapshot> records() const;

 private:
  mutable std::mutex mutex_;
  Counters counters_;
  std::optional<FlightSnapshot> records_;
};

}  // namespace q7x2
