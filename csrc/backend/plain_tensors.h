// Plain tensors, whose memory holds their values as they are, and how others are read and written.
//
// A conjugate or negative view (torch.conj(x), torch.conj(x).imag) stands for other numbers than
// the bits in its memory, and torch's operations know it. Whoever takes the pointer does not.
#pragma once

#include <ATen/ATen.h>

namespace q7x2 {

/// Whether the elements lie one after the other, with the bits of their values.
inline bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

/// Throws c10::Error unless the tensor's storage has all its elements. FSDP and others free the
/// storage of tensors that keep their shape.
void check_storage(const at::Tensor& tensor);

/// The values of `tensor` as a plain tensor on the host: `tensor` itself if it is one.
at::Tensor plain_on_host(const at::Tensor& tensor);

/// Copies `source` to a result. That is written whatever autograd or inference mode thinks of it:
/// it may be a leaf that requires a gradient.
void write_result(const at::Tensor& result, const at::Tensor& source);

}  // namespace q7x2
