// What the memory holds for gradients of zeros: what did not go along comes back after the step.
#pragma once

#include <utility>
#include <vector>

#include "comm_hooks/compress/compressor.h"

namespace q7x2 {

inline constexpr size_t kResidual = 0;  ///< the memory's kind of it, with error feedback

/// Of idle gradients, before the step: by position among `coded`, then by kind.
using Held = std::vector<std::pair<size_t, std::vector<at::Tensor>>>;

/// By position among `coded`: whether the gradient is zeros.
std::vector<bool> idle_gradients(const BucketExchange& exchange);
Held hold_idle(const BucketExchange& exchange, Compressor& compressor);
void restore_idle(const BucketExchange& exchange, const Held& held);

}  // namespace q7x2
