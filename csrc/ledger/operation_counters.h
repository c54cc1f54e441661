// OperationCounters: totals of the operations of one group and kind.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "ledger/duration_histogram.h"
#include "ledger/flight_record.h"

namespace q7x2 {

struct OperationCounters {
  uint64_t count = 0;   ///< operations that succeeded; the other values are about these
  uint64_t failed = 0;  ///< including those that never started
  uint64_t input_bytes = 0;
  uint64_t output_bytes = 0;
  Traffic traffic;
  WorkTimes work;
  // In nanoseconds.
  int64_t queued = 0;  ///< from the submission to the start
  int64_t took = 0;    ///< from the start to the end
  int64_t waited = 0;
  int64_t longest = 0;
  // Only operations with a prediction. In seconds.
  double predicted = 0;
  double took_predicted = 0;
  DurationHistogram durations;  ///< from the start to the end

  /// Adds the record of an operation that is over.
  void add(const FlightRecord& record);
};

/// The counters of one group.
class GroupCounters {
 public:
  /// Collectives, sends, receives, and operations that prepare a call.
  static constexpr size_t kKinds = static_cast<size_t>(Collective::kBarrier) + 4;

  /// "all_reduce", "send", "receive", "preparation".
  static const char* name_of(size_t kind);

  void add(const FlightRecord& record) { kinds_[kind_of(record)].add(record); }
  const OperationCounters& of(size_t kind) const { return kinds_[kind]; }

 private:
  static size_t kind_of(const FlightRecord& record);

  std::array<OperationCounters, kKinds> kinds_;
};

}  // namespace q7x2
