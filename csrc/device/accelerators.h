// The accelerators whose tensors q7x2 takes: CUDA's, and those that were registered.
#pragma once

#include <string>

#include "base/memory_kind.h"
#include "device/stream_calls.h"

namespace q7x2 {

using StreamCalls = Q7x2StreamCalls;

/// Tensors of `device_type`, such as "npu", are accepted from now on. `calls` must stay. `memory`:
/// as others know it, kHost: nobody does. Throws Error(kInvalidArgument) if a function is missing,
/// or if others are registered already.
void register_accelerator(const std::string& device_type, const StreamCalls& calls,
                          MemoryKind memory = MemoryKind::kHost);

/// Null: no such accelerator. Those of "cuda" come from the driver that this process has loaded;
/// nothing is linked against it.
const StreamCalls* stream_calls(const std::string& device_type);

/// As what kind of memory others know that of `device_type`; kHost: they do not.
MemoryKind memory_of_device(const std::string& device_type);

/// Throws Error(kTransport) that says what failed, if `result` is not 0.
void check_stream_call(int result, const char* what);

}  // namespace q7x2
