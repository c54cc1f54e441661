#include "backend/plain_tensors.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>

namespace q7x2 {

void check_storage(const at::Tensor& tensor) {
  const size_t needed = at::detail::computeStorageNbytes(
      tensor.sizes(), tensor.strides(), tensor.itemsize(), tensor.storage_offset());
  const size_t there = tensor.storage().nbytes();
  TORCH_CHECK(there >= needed, "q7x2: expected a tensor whose storage has ", needed,
              " bytes, as its shape ", tensor.sizes(), " needs, got a storage of ", there,
              " bytes: was it freed?");
}

at::Tensor plain_on_host(const at::Tensor& tensor) {
  check_storage(tensor);
  return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();
}

void write_result(const at::Tensor& result, const at::Tensor& source) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::Tensor destination = result;
  destination.copy_(source);
}

}  // namespace q7x2
