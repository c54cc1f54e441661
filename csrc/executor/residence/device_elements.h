// DeviceElements: converts elements in a device's memory to the fp32 that its kernels add.
//
// Elements of 16 bits are read and written as bodies of the codecs fp16 and bf16, by the same
// kernels. So all sums are computed in fp32, and rounded once.
#pragma once

#include <cstddef>
#include <utility>

#include "base/types.h"
#include "kernels/cuda/codec_kernels.h"

namespace q7x2 {

/// Whether kernels can convert the type to fp32: fp32, fp16 and bf16.
bool is_of_devices(DType dtype);

class DeviceElements {
 public:
  /// Does not throw; requires `is_of_devices(dtype)`. `kernels` must outlive it.
  DeviceElements(const CodecKernels& kernels, DType dtype);

  /// Whether the elements are fp32 already.
  bool is_wide() const { return is_wide_; }
  /// The elements as fp32: in `floats` if they have 16 bits, otherwise in their own memory.
  const float* read(const std::byte* elements, size_t count, void* stream, float* floats) const;
  /// From fp32, to elements of 16 bits.
  void write(const float* numbers, size_t count, std::byte* to, void* stream) const;

 private:
  const CodecKernels& kernels_;
  const bool is_wide_;
  const ValueSpec spec_;
};

/// Memory of the device that a job needs while it runs, allocated piece by piece.
class DevicePieces {
 public:
  explicit DevicePieces(std::byte* begin) : next_(begin) {}

  /// The size of a piece with its padding.
  static constexpr size_t rounded(size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  std::byte* take(size_t bytes) { return std::exchange(next_, next_ + rounded(bytes)); }
  float* take_floats(size_t count) { return reinterpret_cast<float*>(take(count * sizeof(float))); }

 private:
  static constexpr size_t kAlignment = 256;
  std::byte* next_;
};

}  // namespace q7x2
