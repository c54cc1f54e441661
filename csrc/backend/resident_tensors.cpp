#include "backend/resident_tensors.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "backend/plain_tensors.h"

namespace q7x2 {
namespace {

/// The memory of a tensor.
struct Span {
  const std::byte* begin;
  size_t bytes;

  explicit Span(const at::Tensor& tensor)
      : begin(static_cast<const std::byte*>(tensor.const_data_ptr())), bytes(tensor.nbytes()) {}
  const std::byte* end() const { return begin + bytes; }
};

bool are_apart(at::TensorList read, at::TensorList written, const void* own) {
  std::vector<Span> outputs;
  for (const at::Tensor& tensor : written) outputs.emplace_back(tensor);
  std::ranges::sort(outputs, {}, &Span::begin);
  for (size_t i = 1; i < outputs.size(); ++i) {
    if (outputs[i - 1].end() > outputs[i].begin) return false;
  }
  return std::ranges::all_of(read, [&](const at::Tensor& tensor) {
    const Span input(tensor);
    return std::ranges::all_of(outputs, [&](const Span& output) {
      const Span& part = input.bytes <= output.bytes ? input : output;
      return (own != nullptr && part.begin == own) || input.end() <= output.begin ||
             output.end() <= input.begin;
    });
  });
}

}  // namespace

bool can_stay(at::TensorList read, at::TensorList written, const void* own) {
  const c10::Device device = (written.empty() ? read : written)[0].device();
  const auto is_there = [&](const at::Tensor& tensor) {
    return tensor.device() == device && is_plain(tensor);
  };
  return std::ranges::all_of(read, is_there) && std::ranges::all_of(written, is_there) &&
         are_apart(read, written, own);
}

}  // namespace q7x2
