// The hook of every compressor: schedule, gradients of zeros, failures and roll-back, once.
#pragma once

#include <memory>

#include "comm_hooks/compress/compressors.h"
#include "comm_hooks/run/hook.h"

namespace q7x2 {

/// A transform, a compressor and the memory between them. What it returns throws
/// Error(kInvalidArgument) for a transform that does not exist, and for what the compressor
/// refuses.
MakeHook compressing_hook(CompressingOptions options, MakeCompressor make_compressor);

}  // namespace q7x2
