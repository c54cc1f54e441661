// Finds the gradients of a bucket that are all zeros, in one pass and without a wait for each of
// them.
#pragma once

#include <vector>

#include <ATen/ATen.h>

#include "comm_hooks/compress/zeros.h"

namespace q7x2 {

/// For each tensor (one dimension), whether every element is 0. On the CPU the first elements
/// usually tell; a device computes all flags at once, and the host waits for it once.
inline std::vector<bool> are_zero(const std::vector<at::Tensor>& tensors) {
  std::vector<bool> zeros;
  if (tensors.empty()) return zeros;
  if (tensors[0].is_cpu()) {
    for (const at::Tensor& tensor : tensors) {
      zeros.push_back(is_zero(tensor.const_data_ptr(), static_cast<size_t>(tensor.numel()),
                              tensor.element_size()));
    }
    return zeros;
  }
  std::vector<at::Tensor> any;
  for (const at::Tensor& norm : at::_foreach_norm(tensors, INFINITY)) any.push_back(norm.ne(0));
  const at::Tensor flags = at::stack(any).cpu();
  for (int64_t i = 0; i < flags.numel(); ++i) zeros.push_back(!flags.const_data_ptr<bool>()[i]);
  return zeros;
}

}  // namespace q7x2
