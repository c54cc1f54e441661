#include "ledger/ledger_feed.h"

#include <utility>

namespace q7x2 {

void LedgerFeed::wait(std::chrono::milliseconds patience) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, patience, [this] { return is_woken_; });
  is_woken_ = false;
}

void LedgerFeed::wake() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_woken_ = true;
  }
  changed_.notify_all();
}

void LedgerFeed::add(FlightBatch&& batch) {
  const std::lock_guard<std::mutex> lock(mutex_);
  batches_.push_back(std::move(batch));
}

std::vector<FlightBatch> LedgerFeed::take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(batches_, {});
}

}  // namespace q7x2
