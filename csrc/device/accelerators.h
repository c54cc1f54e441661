// The accelerators whose tensors q7x2 takes: CUDA's, and those that were registered.
#pragma once

#include <string>

#include "device/stream_calls.h"

namespace q7x2 {

using StreamCalls = Q7x2StreamCalls;

/// Tensors of `device_type`, such as "npu", are accepted from now on. `calls` must stay. Throws
/// Error(kInvalidArgument) if a function is missing, or if others are registered already.
void register_accelerator(const std::string& device_type, const StreamCalls& calls);

/// Null: no such accelerator. Those of "cuda" come from the driver that this process has loaded;
/// nothing is linked against it.
const StreamCalls* stream_calls(const std::string& device_type);

/// Throws Error(kTransport) that says what failed, if `result` is not 0.
void check_stream_call(int result, const char* what);

}  // namespace q7x2
