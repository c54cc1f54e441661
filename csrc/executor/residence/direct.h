// Direct: the elements stay on a device, and messages are in memory of devices
// (transport/ucx/device_path.h).
//
//   send, receive   UCX, between the memory of devices; the host waits for it
//   copy, reduce    a copy or a kernel on the device's stream; the job is complete when the stream
//                   has done it
//
// So UCX and the stream never use the same memory at the same time. Sums have the same bits as on
// the CPU: the kernels add in the same order.
#pragma once

#include <cstddef>
#include <memory>

#include "base/types.h"
#include "executor/residence/residence.h"

namespace q7x2 {

/// Whether a device with kernels can add up such elements.
bool adds_directly(DType dtype, ReduceKind kind);

class Direct final : public Residence, private DeviceWorker {
 public:
  Direct(std::shared_ptr<InputLatch> inputs, ResidentDevice device);

  Memory memory(const Run& run, size_t place, ScratchPool& pool) const override;
  /// Allocates memory of the device for scratch blocks. The step ends when the device has done all
  /// earlier work on that memory, so UCX may use it.
  Next enter(const Run& run) override;
  /// All work is on one stream.
  WorkStream& stream(Way) const override { return *device_->to_device; }

 private:
  size_t enqueue(const OpJob& job, size_t count) override;
  void complete_later(OpJob& job, const std::shared_ptr<Task>& task) override;
  void add_up(const OpJob& job, size_t count, WorkStream& stream) const;

  std::shared_ptr<std::byte> scratch_;
};

}  // namespace q7x2
