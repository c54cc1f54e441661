// Gradients of zeros, which may be of parameters that were not used.
//
// For a parameter that no rank used DDP drops what was reduced. So what a rank keeps of a gradient
// of zeros must stay behind, and what comes out where all ranks gave zeros must be zeros, which not
// all compressions do by themselves: those have the ranks count who uses what.
#pragma once

#include <vector>

#include <ATen/ATen.h>

namespace q7x2 {

/// To be added up by the ranks: 1 for each gradient that is not idle on this one.
inline at::Tensor uses_of(const std::vector<bool>& idle, const at::TensorOptions& options) {
  std::vector<float> uses;
  for (const bool is_idle : idle) uses.push_back(is_idle ? 0 : 1);
  return at::tensor(uses, at::kFloat).to(options);
}

/// From the sum: which are idle on all ranks.
inline std::vector<bool> idle_everywhere(const at::Tensor& uses) {
  const at::Tensor counts = uses.to(at::kFloat).cpu().contiguous();
  const float* const count = counts.const_data_ptr<float>();
  std::vector<bool> idle;
  for (int64_t i = 0; i < counts.numel(); ++i) idle.push_back(count[i] == 0);
  return idle;
}

}  // namespace q7x2
