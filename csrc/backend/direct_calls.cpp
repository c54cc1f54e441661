// Which uncompressed calls on tensors of a device are direct: their messages are memory of devices.
//
// All ranks of a call must say the same. So that follows from the group, the device and the kind of
// call alone. Where this rank's own elements are, it decides by itself: on the device, unless its
// tensors are strided or overlap. Then it stages them, and UCX gets pinned memory at this end.
#include <string>

#include "backend/argument_checks.h"
#include "backend/process_group.h"
#include "backend/resident_tensors.h"
#include "backend/work_stream.h"
#include "device/accelerators.h"
#include "executor/residence/direct_device.h"

namespace q7x2 {
namespace {

std::string type_of(const c10::Device& device) {
  return c10::DeviceTypeName(device.type(), /*lower_case=*/true);
}

}  // namespace

bool ProcessGroupQ7x2::goes_directly(const at::Tensor& tensor, Collective collective,
                                     const Reduction* reduction) const {
  const DevicePathOfGroup& path = group_->device_path();
  TORCH_CHECK(path.obstacle.empty(), "q7x2: device_path='direct': ", path.obstacle);
  const std::string type = type_of(tensor.device());
  if (!path.is_direct || memory_of_device(type) != MemoryKind::kCuda) return false;
  if (!is_reduction(collective)) return true;
  return codec_kernels(type) != nullptr && !reduction->premultiplies() &&
         adds_directly(reducible_dtype(tensor), reduction->kind);
}

void ProcessGroupQ7x2::stay_on_device(Launch& launch, Collective collective, at::TensorList read,
                                      at::TensorList written, const void* own,
                                      const Reduction* reduction) {
  const at::Tensor& any = (written.empty() ? read : written)[0];
  const c10::Device device = any.device();
  if (device.is_cpu()) return;
  launch.is_direct = goes_directly(any, collective, reduction);
  if (!launch.is_direct || !can_stay(read, written, own)) return;
  const WorkStreams streams = work_streams(device);
  launch.resident_device = ResidentDevice{streams.to_host, streams.to_device,
                                          codec_kernels(type_of(device)), lanes_.traffic()};
  launch.buffers->stay_on_device();
}

}  // namespace q7x2
