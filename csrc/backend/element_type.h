// Maps torch's element types to q7x2's.
#pragma once

#include <ATen/ATen.h>

#include "base/types.h"

namespace q7x2 {

/// The element type of `tensor`; kBytes if q7x2 does not know it.
DType dtype_of(const at::Tensor& tensor);

}  // namespace q7x2
