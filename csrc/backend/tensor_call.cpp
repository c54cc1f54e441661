#include "backend/tensor_call.h"

namespace q7x2 {

TensorCall::TensorCall(Collective collective, DType dtype, int root) {
  call.collective = collective;
  call.dtype = dtype;
  call.root = root;
}

void TensorCall::flat(const at::Tensor& tensor, Use use) {
  is_flat_ = true;
  call.input = call.output = {{nullptr, tensor.nbytes()}};
  input_.push_back({tensor, use, 1});
}

void TensorCall::reads(const at::Tensor& tensor, size_t parts) {
  call.input.insert(call.input.end(), parts, {nullptr, tensor.nbytes() / parts});
  input_.push_back({tensor, Use::kRead, parts});
}

void TensorCall::writes(const at::Tensor& tensor, size_t parts) {
  call.output.insert(call.output.end(), parts, {nullptr, tensor.nbytes() / parts});
  output_.push_back({tensor, Use::kWritten, parts});
}

void TensorCall::reads(const at::Tensor& tensor, std::span<const size_t> lengths) {
  for (const size_t length : lengths) call.input.push_back({nullptr, length});
  input_.push_back({tensor, Use::kRead, lengths.size()});
}

void TensorCall::writes(const at::Tensor& tensor, std::span<const size_t> lengths) {
  for (const size_t length : lengths) call.output.push_back({nullptr, length});
  output_.push_back({tensor, Use::kWritten, lengths.size()});
}

const at::Tensor& TensorCall::any_tensor() const {
  return (output_.empty() ? input_ : output_)[0].tensor;
}

const void* TensorCall::part_of(int rank) const {
  const bool has_parts =
      call.collective == Collective::kAllGather || call.collective == Collective::kGather ||
      call.collective == Collective::kReduceScatter || call.collective == Collective::kScatter;
  if (!has_parts) return nullptr;
  const bool is_output =
      call.collective == Collective::kAllGather || call.collective == Collective::kGather;
  const std::vector<Region>& regions = is_output ? call.output : call.input;
  auto region = static_cast<size_t>(rank);
  size_t first = 0;
  for (const Operand& operand : is_output ? output_ : input_) {
    if (region >= first + operand.regions) {
      first += operand.regions;
      continue;
    }
    const auto* part = static_cast<const std::byte*>(operand.tensor.const_data_ptr());
    for (; first < region; ++first) part += regions[first].bytes;
    return part;
  }
  return nullptr;
}

void TensorCall::list(std::vector<at::Tensor>& read, std::vector<at::Tensor>& written) const {
  for (const Operands* operands : {&input_, &output_}) {
    for (const Operand& operand : *operands) {
      (operand.use == Use::kRead ? read : written).push_back(operand.tensor);
    }
  }
  if (errors_) written.push_back(*errors_);
}

void TensorCall::place(CallBuffers& buffers) {
  place(buffers, input_, call.input);
  if (is_flat_) {
    call.output = call.input;
  } else {
    place(buffers, output_, call.output);
  }
  if (!errors_) return;
  auto* next = reinterpret_cast<float*>(buffers.in_place(*errors_).data);
  for (const Region& region : call.input) {
    call.coding.errors.push_back(next);
    next += region.bytes / element_size(call.dtype);
  }
}

void TensorCall::place(CallBuffers& buffers, const Operands& operands,
                       std::vector<Region>& regions) {
  auto region = regions.begin();
  for (const Operand& operand : operands) {
    const at::Tensor& tensor = operand.tensor;
    std::byte* next = (operand.use == Use::kRead      ? buffers.input(tensor)
                       : operand.use == Use::kWritten ? buffers.output(tensor)
                                                      : buffers.in_place(tensor))
                          .data;
    for (size_t i = 0; i < operand.regions; ++i, ++region) {
      region->data = next;
      next += region->bytes;
    }
  }
}

}  // namespace q7x2
