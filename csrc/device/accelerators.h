// The accelerators whose tensors q7x2 accepts: CUDA's, and registered ones.
#pragma once

#include <string>

#include "base/memory_kind.h"
#include "device/stream_calls.h"

namespace q7x2 {

using StreamCalls = Q7x2StreamCalls;

/// From now on accepts tensors of `device_type`, such as "npu". `calls` must live for ever.
/// `memory`: the name of this memory for UCX; kHost: UCX does not know it. Throws
/// Error(kInvalidArgument) if a function is missing, or if other calls are already registered.
void register_accelerator(const std::string& device_type, const StreamCalls& calls,
                          MemoryKind memory = MemoryKind::kHost);

/// Null if there is no such accelerator. The calls of "cuda" come from the driver that this process
/// has loaded; q7x2 is not linked against it.
const StreamCalls* stream_calls(const std::string& device_type);

/// The kind of memory that UCX takes that of `device_type` for; kHost: UCX does not know it.
MemoryKind memory_of_device(const std::string& device_type);

/// Throws Error(kTransport) with `what` in its message if `result` is not 0.
void check_stream_call(int result, const char* what);

}  // namespace q7x2
