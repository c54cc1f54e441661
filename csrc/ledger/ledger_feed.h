// LedgerFeed: hands what the recorder of this process holds to the thread that writes the ledger.
//
// It outlives the runtime, because programs end their groups before they end: the runtime leaves
// the rest of its records here when it stops. A failure of a group wakes the thread.
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
  /// Waits until `wake`, or for so long.
  void wait(std::chrono::milliseconds patience);
  /// Any thread, also with the reactor's lock.
  void wake();

  /// What a runtime that has ended left behind.
  void add(FlightBatch&& batch);
  std::vector<FlightBatch> take();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_woken_ = false;
  std::vector<FlightBatch> batches_;
};

}  // namespace q7x2
