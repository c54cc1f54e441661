// The state of gradients of zeros: what was not sent is restored after the step.
#pragma once

#include <utility>
#include <vector>

#include "comm_hooks/compress/compressor.h"

namespace q7x2 {

inline constexpr size_t kResidual = 0;  ///< index of the memory's kind for it, with error feedback

/// The state of idle gradients before the step: by index in `coded`, then by kind.
using Held = std::vector<std::pair<size_t, std::vector<at::Tensor>>>;

/// By index in `coded`: whether the gradient is zeros.
std::vector<bool> idle_gradients(const BucketExchange& exchange);
Held hold_idle(const BucketExchange& exchange, Compressor& compressor);
void restore_idle(const BucketExchange& exchange, const Held& held);

}  // namespace q7x2
