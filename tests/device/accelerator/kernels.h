// How operators run on the stand-in accelerator: in the thread of a stream, on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include "stream.h"

namespace accelerator {

inline bool is_ours(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kType;
}

/// The same elements as a kernel sees them: a CPU tensor that does not keep the memory, as no
/// kernel does.
at::Tensor as_kernels_see(const at::Tensor& tensor);

/// Like a kernel's launch: `work` runs on the current stream of `device`, on plain CPU tensors.
void launch(c10::DeviceIndex device, std::function<void()> work);

/// Copies run at so many bytes a second at most, those of one device and direction one after
/// another; 0: as fast as they can.
void set_copy_rate(double bytes_per_second);

/// Between the host and all devices so far, counted when a copy is complete.
struct Copied {
  uint64_t to_device;
  uint64_t to_host;
};
Copied copied_bytes();

}  // namespace accelerator
