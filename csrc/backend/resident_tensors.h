// Tensors of a device that a call may leave where they are, instead of staging them.
#pragma once

#include <ATen/ATen.h>

namespace q7x2 {

/// All are contiguous on one device, hold their elements as they are (no lazy negative or
/// conjugate), and none of `written` overlaps another one, but for a smaller one at `own`: the part
/// of an output that already holds this rank's input.
bool can_stay(at::TensorList read, at::TensorList written, const void* own = nullptr);

}  // namespace q7x2
