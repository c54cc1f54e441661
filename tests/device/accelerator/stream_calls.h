// What q7x2 asks of the stand-in accelerator's streams, and how a test breaks it on purpose.
//
// q7x2's own streams are those of high priority, which no test takes. So what q7x2 does to order
// streams can be left out here, as if q7x2 had forgotten it.
#pragma once

namespace accelerator {

enum class LeftOut {
  kNothing,
  kReady,    ///< q7x2's streams do not wait for others
  kDone,     ///< others do not wait for q7x2's streams
  kRecord,   ///< memory is not recorded for q7x2's streams
  kGate,     ///< streams pass closed gates
  kOpening,  ///< streams do not pass open gates
};

void leave_out(LeftOut what);
bool is_left_out(LeftOut what);

/// A Q7x2StreamCalls.
const void* stream_calls();

}  // namespace accelerator
