#include "ledger/operation_counters.h"

#include <algorithm>

namespace q7x2 {
namespace {

constexpr size_t kSend = static_cast<size_t>(Collective::kBarrier) + 1;
constexpr size_t kReceive = kSend + 1;
constexpr size_t kPreparation = kReceive + 1;
static_assert(kPreparation + 1 == GroupCounters::kKinds);

}  // namespace

void OperationCounters::add(const FlightRecord& record) {
  if (record.state == FlightRecord::State::kFailed) {
    ++failed;
    return;
  }
  const int64_t duration = record.duration();
  ++count;
  input_bytes += record.input_bytes;
  output_bytes += record.output_bytes;
  traffic += record.traffic;
  work += record.work;
  queued += record.started - record.submitted;
  took += duration;
  waited += record.waited;
  longest = std::max(longest, duration);
  if (record.predicted > 0) {
    predicted += static_cast<double>(record.predicted);
    took_predicted += static_cast<double>(duration) * 1e-9;
  }
  durations.add(duration);
}

const char* GroupCounters::name_of(size_t kind) {
  switch (kind) {
    case kSend:
      return "send";
    case kReceive:
      return "receive";
    case kPreparation:
      return "preparation";
    default:
      return to_string(static_cast<Collective>(kind));
  }
}

size_t GroupCounters::kind_of(const FlightRecord& record) {
  if (record.is_internal) return kPreparation;
  if (record.kind == FlightRecord::Kind::kSend) return kSend;
  if (record.kind == FlightRecord::Kind::kReceive) return kReceive;
  return static_cast<size_t>(record.collective);
}

}  // namespace q7x2
