// DeviceCoder: what the ops of a Plan do to coded blocks whose elements are on a device.
//
//   messages    in pinned host memory, where the transport sends them from and receives them
//   elements    where the caller has them; residuals, too
//
// A job checks the messages that it reads on the host, and enqueues: their bodies to the device,
// one kernel, the body that it makes to the host. So messages cross the bus, not elements, and the
// bits are those of BlockCoder: the kernels add in its order (kernels/codec_kernels.h). The host
// does not wait: the job is complete when the stream has come by.
//
// Elements of 16 bits are read and written as bodies of the codecs fp16 and bf16, by the same
// kernels, through fp32 in the device's memory. So all sums are those of fp32.
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
#include "device/bus_traffic.h"
#include "device/work_stream.h"
#include "executor/block_coder.h"
#include "kernels/codec_kernels.h"
#include "plan/plan.h"

namespace q7x2 {

class OpJob;
class Task;

/// Where a call's elements are, if a device encodes and decodes them.
struct CodingDevice {
  std::shared_ptr<WorkStream> to_host;    ///< encodes inputs
  std::shared_ptr<WorkStream> to_device;  ///< reads messages
  const CodecKernels* kernels = nullptr;
  std::shared_ptr<BusTraffic> traffic = std::make_shared<BusTraffic>();
};

/// fp32, fp16 and bf16: what kernels widen.
bool is_of_devices(DType dtype);
/// The codec whose bodies elements of 16 bits are.
ValueSpec spec_of_elements(DType dtype);

/// Whether there are kernels for that codec on elements of that type.
bool has_kernels_for(const Codec& codec, DType dtype);
/// Whether a device can run a call of that kind.
bool runs_on_device(const Plan& plan, const Codec& codec, DType dtype, bool has_errors);

class DeviceCoder {
 public:
  /// `dtype`: of the elements. `message_bytes`: of all messages at once. Takes pinned memory for
  /// them.
  DeviceCoder(CodingDevice device, const Coding& coding, DType dtype, size_t message_bytes);

  /// Pinned, `message_bytes` long.
  std::byte* messages() const { return pinned_.get() + kFlagBytes; }
  // Of jobs of coded kinds, of `count` elements. Without the lock.

  /// Throws Error(kMismatch) if a message that it reads is none of this codec.
  void check(const OpJob& job, size_t count) const;
  /// Enqueues what the job does. Returns the length of the message that it makes, if any. If it
  /// throws, the device may do a part of that.
  size_t enqueue(const OpJob& job, size_t count);
  /// The job is completed when the stream has done what was enqueued.
  void complete_later(OpJob& job, const std::shared_ptr<Task>& task);
  /// Some results were not finite, as far as jobs are complete.
  bool met_nonfinite() const { return *found() != 0; }

 private:
  static constexpr size_t kFlagBytes = 64;
  /// Memory of the device that a job needs while it runs, piece by piece.
  class Pieces;

  uint32_t* found() const { return reinterpret_cast<uint32_t*>(pinned_.get()); }
  ValueBlock block(const OpJob& job, size_t count) const;
  WorkStream& stream_of(const OpJob& job) const;
  /// Whether this rank's contribution goes through the codec before it is added.
  bool codes_own(const OpJob& job) const;
  /// Of the device, for one job.
  size_t scratch_bytes(const OpJob& job, size_t count) const;
  /// Elements as fp32: in `floats` if they have 16 bits, else where they are.
  const float* as_floats(const std::byte* elements, size_t count, void* stream,
                         float* floats) const;
  /// A contribution in the device's memory.
  FoldSource source_of(const OpJob& job, const BlockCoder::Operand& operand, size_t count,
                       WorkStream& stream, Pieces& pieces) const;

  const CodingDevice device_;
  const Coding& coding_;
  const bool is_wide_;                       // elements are fp32
  const ValueSpec elements_;                 // else: the codec whose bodies they are
  const std::shared_ptr<std::byte> pinned_;  // the flag, and the messages
};

}  // namespace q7x2
