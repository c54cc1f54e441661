#include "executor/residence/device_elements.h"

namespace q7x2 {

bool is_of_devices(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

DeviceElements::DeviceElements(const CodecKernels& kernels, DType dtype)
    : kernels_(kernels),
      is_wide_(dtype == DType::kFloat32),
      spec_{.kind = dtype == DType::kFloat16 ? ValueKind::kFloat16 : ValueKind::kBFloat16,
            .bits = 16,
            .group = 0} {}

const float* DeviceElements::read(const std::byte* elements, size_t count, void* stream,
                                  float* floats) const {
  if (is_wide_) return reinterpret_cast<const float*>(elements);
  kernels_.decode(spec_, elements, floats, count, 0, 0, /*add=*/false, stream);
  return floats;
}

void DeviceElements::write(const float* numbers, size_t count, std::byte* to, void* stream) const {
  kernels_.encode(spec_, {.values = numbers, .count = count}, to, stream);
}

}  // namespace q7x2
