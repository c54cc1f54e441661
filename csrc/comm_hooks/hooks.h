// All hooks: what there is, and how it is made.
#pragma once

#include <optional>
#include <variant>

#include "comm_hooks/codec_compressor.h"
#include "comm_hooks/compressing_hook.h"
#include "comm_hooks/low_rank.h"

namespace q7x2 {

/// One line per compressor.
using CompressorOptions = std::variant<CodecOptions, LowRankOptions, FlatLowRankOptions>;

/// A signal, a compressor and the memory between them; see signal.h for the signals.
MakeHook compressing_hook(CompressingOptions options, CompressorOptions compressor);

/// The dense all-reduce. `dtype`: of what is sent; the gradients' own if absent.
MakeHook dense_hook(std::optional<at::ScalarType> dtype);

}  // namespace q7x2
