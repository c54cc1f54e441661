// LedgerFeed: passes the contents of this process's recorder to the thread that writes the ledger.
//
// It outlives the runtime, because programs end their groups before they end: when the runtime
// stops, it leaves the rest of its records here. A failure of a group wakes the thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "ledger/flight_reader.h"

namespace q7x2 {

/// Thread-safe.
class LedgerFeed {
 public:
  /// Waits until `wake` is called, at most for `patience`.
  void wait(std::chrono::milliseconds patience);
  /// Any thread, even with the reactor's lock.
  void wake();

  /// Adds the remaining records of a runtime that has ended.
  void add(FlightBatch&& batch);
  std::vector<FlightBatch> take();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_woken_ = false;
  std::vector<FlightBatch> batches_;
};

}  // namespace q7x2
