// Decides whether the tensors of a call can stay on their device, instead of being staged.
#pragma once

#include <ATen/ATen.h>

namespace q7x2 {

/// Whether all tensors are plain and on one device, and no tensor in `written` overlaps another
/// tensor. One overlap is allowed: a smaller tensor that begins at `own`, the part of an output
/// that already contains this rank's input.
bool can_stay(at::TensorList read, at::TensorList written, const void* own = nullptr);

}  // namespace q7x2
