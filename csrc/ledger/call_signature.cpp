#include "ledger/call_signature.h"

namespace q7x2 {

bool is_reduced(const FlightRecord& record) {
  return record.kind == FlightRecord::Kind::kCollective &&
         (record.collective == Collective::kAllReduce || record.collective == Collective::kReduce ||
          record.collective == Collective::kReduceScatter);
}

std::string call_signature(const FlightRecord& call, std::string_view title,
                           std::string_view details) {
  std::string text(title.empty() ? to_string(call.collective) : title);
  text += " (sequence " + std::to_string(call.sequence);
  if (call.collective != Collective::kBarrier) {
    const uint64_t bytes = call.input_bytes > 0 ? call.input_bytes : call.output_bytes;
    text += ", " + std::to_string(bytes) + " bytes";
    if (call.dtype != DType::kBytes) text += std::string(" of ") + to_string(call.dtype);
  }
  if (is_reduced(call)) text += std::string(", ") + to_string(call.reduce);
  if (call.peer >= 0) {
    text += ", root " + std::to_string(call.peer);
  }
  return text + std::string(details) + ")";
}

}  // namespace q7x2
