// The hook of all compressors: schedule, gradients of zeros, failures and roll-back.
#pragma once

#include "comm_hooks/compress/compressors.h"
#include "comm_hooks/run/hook.h"

namespace q7x2 {

/// Combines a transform, a compressor and the memory between them. The result throws
/// Error(kInvalidArgument) for an unknown transform, and for options that the compressor rejects.
MakeHook compressing_hook(CompressingOptions options, MakeCompressor make_compressor);

}  // namespace q7x2
