// DeviceCoder: what the ops of a Plan do to coded blocks whose elements are on a device.
//
//   messages    in pinned host memory, where the transport sends them from and receives them
//   elements    where the caller has them; residuals, too
//
// A job checks the messages that it reads on the host, and enqueues: their bodies to the device,
// one kernel, the body that it makes to the host. So messages cross the bus, not elements, and the
// bits are those of BlockCoder: the kernels add in its order (kernels/cuda/codec_kernels.h). The
// host does not wait: the job is complete when the stream has come by.
//
// In a vote this rank's own numbers are encoded like those of the others before they are added.
//
// It takes elements of 32 and 16 bits, codecs of the value stage alone, and Plans in which all that
// is sent or received is coded: what would be sent as it is, or selected, is in host memory
// (backend/coding_device.cpp chooses).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/types.h"
#include "executor/collective/block_coder.h"
#include "executor/residence/device_elements.h"
#include "executor/residence/device_worker.h"
#include "executor/residence/resident_device.h"
#include "plan/ir/plan.h"

namespace q7x2 {

/// Whether there are kernels for that codec on elements of that type.
bool has_kernels_for(const Codec& codec, DType dtype);
/// Whether a device can run a call of that kind.
bool runs_on_device(const Plan& plan, const Codec& codec, DType dtype, bool has_errors);

class DeviceCoder final : public DeviceWorker {
 public:
  /// `dtype`: of the elements. `message_bytes`: of all messages at once. Takes pinned memory for
  /// them.
  DeviceCoder(ResidentDevice device, const Coding& coding, DType dtype, size_t message_bytes);

  /// Pinned, `message_bytes` long.
  std::byte* messages() const { return pinned_.get() + kFlagBytes; }
  // Of jobs of coded kinds.
  void check(const OpJob& job, size_t count) const override;
  size_t enqueue(const OpJob& job, size_t count) override;
  void complete_later(OpJob& job, const std::shared_ptr<Task>& task) override;
  /// Some results were not finite, as far as jobs are complete.
  bool met_nonfinite() const { return *found() != 0; }

 private:
  static constexpr size_t kFlagBytes = 64;
  uint32_t* found() const { return reinterpret_cast<uint32_t*>(pinned_.get()); }
  ValueBlock block(const OpJob& job, size_t count) const;
  WorkStream& stream_of(const OpJob& job) const;
  /// Whether this rank's contribution goes through the codec before it is added.
  bool codes_own(const OpJob& job) const;
  /// Of the device, for one job.
  size_t scratch_bytes(const OpJob& job, size_t count) const;
  /// A contribution in the device's memory.
  FoldSource source_of(const OpJob& job, const BlockCoder::Operand& operand, size_t count,
                       WorkStream& stream, DevicePieces& pieces) const;

  const ResidentDevice device_;
  const Coding& coding_;
  const DeviceElements elements_;
  const std::shared_ptr<std::byte> pinned_;  // the flag, and the messages
};

}  // namespace q7x2
