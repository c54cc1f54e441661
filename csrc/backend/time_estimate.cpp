#include "backend/time_estimate.h"

#include <algorithm>
#include <utility>

#include <c10/util/Exception.h>

#include "executor/collective/plan_call.h"

namespace q7x2 {

void TimeEstimate::begin() {
  std::thread::id none;
  TORCH_CHECK(thread_.compare_exchange_strong(none, std::this_thread::get_id()),
              "q7x2: expected _end_time_estimate() before the next _start_time_estimate()");
  seconds_ = 0;
}

double TimeEstimate::end() {
  TORCH_CHECK(is_on(), "q7x2: expected _start_time_estimate() before, in this thread");
  const double seconds = seconds_;
  thread_ = std::thread::id();
  return seconds * 1e6;
}

double predicted_seconds(const Planner& planner, const TensorCall& call) {
  const auto of = [&](const CollectiveCall& each) {
    return planner.explain(shape_of(each)).front().seconds();
  };
  return of(call.call) + (call.derivation ? of(call.derivation->first) : 0.0);
}

double predicted_seconds(const Fabric& fabric, int rank, int peer, size_t bytes) {
  const Planner pair(0, std::make_shared<const Fabric>(fabric.subset({rank, peer})), "");
  const CallShape shape{.collective = Collective::kBroadcast, .bytes = bytes, .root = 0};
  return pair.explain(shape).front().seconds();
}

}  // namespace q7x2
