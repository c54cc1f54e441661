// DirectDevice: what the ops of a Plan do to elements that stay on a device, in calls whose
// messages are memory of devices (transport/ucx/device_path.h).
//
//   send, receive   UCX, between the memory of devices; the host waits for it
//   copy, reduce    here: a copy or a kernel on the device's stream; the job is complete when the
//                   stream has come by
//
// So UCX touches nothing that the stream still works on, and the other way round. Sums have the
// bits of the CPU: the kernels add in its order.
#pragma once

#include <cstddef>
#include <memory>

#include "base/types.h"
#include "executor/residence/device_worker.h"
#include "executor/residence/resident_device.h"

namespace q7x2 {

/// Whether a device with kernels can add up such elements.
bool adds_directly(DType dtype, ReduceKind kind);

class DirectDevice final : public DeviceWorker {
 public:
  /// `dtype`: of the elements. Takes memory of the device for the call's scratch blocks, which may
  /// be used when `to_device` has come by.
  DirectDevice(ResidentDevice device, DType dtype, size_t scratch_bytes);

  std::byte* scratch() const { return scratch_.get(); }
  size_t enqueue(const OpJob& job, size_t count) override;
  void complete_later(OpJob& job, const std::shared_ptr<Task>& task) override;

 private:
  void add_up(const OpJob& job, size_t count, WorkStream& stream) const;

  const ResidentDevice device_;
  const DType dtype_;
  std::shared_ptr<std::byte> scratch_;
};

}  // namespace q7x2
