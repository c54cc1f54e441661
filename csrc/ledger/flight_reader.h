// FlightReader: follows the recorder, and passes on each operation once, when it is over.
//
// It reads the records in the order of their numbers. It remembers an operation that is in progress
// and reads it again. If a newer record has replaced it meanwhile, it is counted as lost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ledger/flight_recorder.h"

namespace q7x2 {

/// What a reader has found, to be written without a lock.
struct FlightBatch {
  struct Operation {
    FlightRecord record;
    std::string plan;
    std::string codec;
  };
  struct Counted {
    uint32_t group = 0;
    GroupCounters counters;
  };

  uint64_t process = 0;
  int64_t steady_now = 0;                  ///< nanoseconds
  int64_t wall_now = 0;                    ///< the same moment, nanoseconds since 1970
  uint64_t recorded = 0;                   ///< total number of operations
  uint64_t lost = 0;                       ///< total number of operations that the reader has lost
  int64_t counted_since = 0;               ///< see FlightRecorder
  std::vector<Operation> operations;       ///< operations that are over
  std::map<uint32_t, FlightGroup> groups;  ///< groups that are new, or have failed since
  std::vector<Counted> counters;           ///< those of all groups
};

// All functions are called under the reactor's lock.
class FlightReader {
 public:
  explicit FlightReader(FlightRecorder& recorder) : recorder_(recorder) {}

  /// Appends operations that were in progress at the last call, and are over now.
  void read_pending(FlightBatch& batch);
  /// Appends further operations that are over; reads at most `most` records. Returns false if there
  /// are no more.
  bool read_new(FlightBatch& batch, size_t most);
  /// Fills in the other fields.
  void read_groups(FlightBatch& batch);

 private:
  void pass_on(FlightBatch& batch, const FlightRecord& record) const;

  FlightRecorder& recorder_;
  uint64_t next_ = 1;              // the first record that was not read yet
  std::vector<uint64_t> pending_;  // were in progress at the last call
  uint64_t lost_ = 0;
  std::set<std::pair<uint32_t, bool>> known_;  // groups, and whether they had failed
};

}  // namespace q7x2
