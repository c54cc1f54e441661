// torch's element types as q7x2 names them.
#pragma once

#include <ATen/ATen.h>

#include "base/types.h"

namespace q7x2 {

/// The element type of `tensor`; kBytes for one that q7x2 does not know.
DType dtype_of(const at::Tensor& tensor);

}  // namespace q7x2
