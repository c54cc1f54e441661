#include "ledger/call_signature.h"

namespace q7x2 {

std::string call_signature(const FlightRecord& call, std::string_view title) {
  const bool reduces = call.collective == Collective::kAllReduce ||
                       call.collective == Collective::kReduce ||
                       call.collective == Collective::kReduceScatter;
  std::string text(title.empty() ? to_string(call.collective) : title);
  text += " (sequence " + std::to_string(call.sequence);
  if (call.collective != Collective::kBarrier) {
    const uint64_t bytes = call.input_bytes > 0 ? call.input_bytes : call.output_bytes;
    text += ", " + std::to_string(bytes) + " bytes";
  }
  if (reduces) {
    text += std::string(" of ") + to_string(call.dtype) + ", " + to_string(call.reduce);
  }
  if (call.peer >= 0) {
    text += ", root " + std::to_string(call.peer);
  }
  return text + ")";
}

}  // namespace q7x2
