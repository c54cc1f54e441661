// The hook of every compressor: schedule, gradients of zeros, failures and roll-back, once.
#pragma once

#include <memory>

#include "comm_hooks/compressor.h"
#include "comm_hooks/hook.h"
#include "comm_hooks/schedule.h"
#include "comm_hooks/signal.h"

namespace q7x2 {

/// What all compressing hooks can be asked for.
struct CompressingOptions {
  FullPrecision full_precision;
  /// What a compressor loses is added to the next gradient.
  bool error_feedback = true;
  SignalOptions signal;
  /// The largest norm (L2) that a gradient may have on one rank, before it is divided by the number
  /// of ranks; 0: any.
  double clip_norm = 0;
};

/// Throws Error(kInvalidArgument) for a signal that does not exist.
std::unique_ptr<Hook> make_compressing(const HookContext& context, CompressingOptions options,
                                       std::unique_ptr<Compressor> compressor);

}  // namespace q7x2
