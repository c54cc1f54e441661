// Plain tensors, whose memory contains their values, and functions to read and write other tensors.
//
// A conjugate or negative view (torch.conj(x), torch.conj(x).imag) has other values than the bits
// in its memory. torch's operations handle that, but code that uses the pointer does not.
#pragma once

#include <ATen/ATen.h>

namespace q7x2 {

/// Whether the elements are contiguous, and their bits are their values.
inline bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

/// Throws c10::Error unless the tensor's storage has all its elements. FSDP, for example, frees the
/// storage of tensors that keep their shape.
void check_storage(const at::Tensor& tensor);

/// The values of `tensor` as a plain tensor on the host: `tensor` itself if it is one.
at::Tensor plain_on_host(const at::Tensor& tensor);

/// Copies `source` to a result, regardless of autograd and inference mode: the result may be a leaf
/// that requires a gradient.
void write_result(const at::Tensor& result, const at::Tensor& source);

}  // namespace q7x2
