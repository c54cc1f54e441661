// DeviceCoded: the elements stay on a device, which executes the ops of a Plan on coded blocks.
//
//   messages    in pinned host memory, which the transport sends from and receives into
//   elements    in the caller's memory; residuals, too
//
// The host checks the messages that a job reads. Then the job enqueues copies of their bodies to
// the device, one kernel, and a copy of the resulting body to the host. So messages cross the bus,
// not elements. The bits are those of BlockCoder: the kernels add in the same order
// (kernels/cuda/codec_kernels.h). The host does not wait: the job is complete when the stream has
// done all this.
//
// In a vote this rank's own numbers are encoded like those of the others before they are added.
//
// It supports elements of 32 and 16 bits, codecs that have only a value stage, and Plans in which
// all messages are coded. With other Plans it degrades.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/types.h"
#include "executor/residence/device_elements.h"
#include "executor/residence/residence.h"
#include "plan/ir/plan.h"

namespace q7x2 {

/// Whether there are kernels for this codec with elements of this type.
bool has_kernels_for(const Codec& codec, DType dtype);
/// Whether a device can run such a call.
bool runs_on_device(const Plan& plan, const Codec& codec, DType dtype, bool has_errors);

class DeviceCoded final : public Residence, private DeviceWorker {
 public:
  DeviceCoded(std::shared_ptr<InputLatch> inputs, ResidentDevice device);

  Memory memory(const Run& run, size_t place, ScratchPool& pool) const override;
  bool met_nonfinite() const override { return pinned_ && *found() != 0; }
  /// Allocates the memory of messages if the device runs the Plan. Then `enter` has nothing to do.
  void prepare(const Run& run) override;
  Next enter(const Run& run) override;

 private:
  static constexpr size_t kFlagBytes = 64;

  // For jobs of coded kinds.
  void check(const OpJob& job, size_t count) const override;
  size_t enqueue(const OpJob& job, size_t count) override;
  void complete_later(OpJob& job, const std::shared_ptr<Task>& task) override;

  void take_memory(const Run& run);
  uint32_t* found() const { return reinterpret_cast<uint32_t*>(pinned_.get()); }
  WorkStream& stream_of(const OpJob& job) const;
  /// Bytes of the device's memory that one job needs.
  size_t scratch_bytes(const OpJob& job, size_t count) const;
  /// A contribution in the device's memory.
  FoldSource source_of(const OpJob& job, const BlockCoder::Operand& operand, size_t count,
                       WorkStream& stream, DevicePieces& pieces) const;

  std::shared_ptr<std::byte> pinned_;  // the flag, and the messages
};

}  // namespace q7x2
