// Gradients through a codec: q7x2's compressed all-reduce as a hook.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm_hooks/hook.h"
#include "comm_hooks/schedule.h"

namespace q7x2 {

struct CodedHookOptions {
  /// See kernels/codec_spec.h.
  std::string codec;
  /// By parameter number: its gradient travels whole.
  std::vector<bool> whole;
  FullPrecision full_precision;
  bool error_feedback = true;
  uint64_t seed = 0;
};

/// Throws Error(kInvalidArgument) for a codec that does not exist or cannot keep errors.
std::unique_ptr<Hook> make_coded(const HookContext& context, CodedHookOptions options);

}  // namespace q7x2
