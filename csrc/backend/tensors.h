// Converts torch's tensors, dtypes and reductions to the memory and types of the layers below.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "backend/device_stream.h"
#include "backend/pinned_buffers.h"
#include "backend/torch_compat.h"
#include "base/types.h"
#include "executor/call/collective_call.h"

namespace q7x2 {

/// The element type for a reduction over `tensor`. Throws c10::Error if q7x2 cannot reduce the
/// type.
DType reducible_dtype(const at::Tensor& tensor);

/// The parts of a c10d reduction. `premultiply` applies the factor of PREMUL_SUM to a contribution.
struct Reduction {
  ReduceKind kind = ReduceKind::kSum;
  int divisor = 1;
  std::optional<double> factor;
  std::optional<at::Tensor> tensor_factor;

  Reduction(const c10d::ReduceOp& op, int world_size);
  bool premultiplies() const { return factor.has_value() || tensor_factor.has_value(); }
  at::Tensor premultiply(const at::Tensor& contribution) const;
};

/// The memory of one call. Contiguous CPU tensors are used in place. Other CPU tensors
/// (strided, conjugated) get a contiguous copy, which is copied back at the end. Device tensors are
/// copied to pinned memory and back in the order of streams, from `read` to the end of the call.
/// The object keeps all of this memory alive.
class CallBuffers {
 public:
  /// The memory of a tensor that is only read.
  Region input(const at::Tensor& tensor);
  /// The memory of a tensor that is overwritten completely.
  Region output(const at::Tensor& tensor);
  /// The memory of a tensor that is read and written. If a tensor occurs twice in a call, it
  /// contributes its original values both times.
  Region in_place(const at::Tensor& tensor);
  /// A copy that belongs to the call, which reads and writes it.
  Region private_copy(const at::Tensor& tensor);
  Region private_copy(Region region);

  /// After the other copies back, also copies `source` to `destination`.
  void also_copy(const at::Tensor& source, const at::Tensor& destination);
  /// From now on the regions of device tensors are device memory, which the host does not touch.
  /// Tensors must be contiguous, and occur only once in the call.
  void stay_on_device() { stays_on_device_ = true; }
  /// Runs `last` after all copies back. It writes to tensors on `device`.
  void then(std::function<void()> last, at::Device device);
  /// The same for a call on device tensors, in the order of streams: the host takes no part.
  void then(DeviceStream::Finish finish) { finish_ = std::move(finish); }
  /// Whether the host has work at the end of the call.
  bool has_copies() const { return !copies_.empty() || last_ != nullptr; }
  /// Copies the results to the caller's tensors. Any thread.
  void copy_back() const;

  /// The device of the call's tensors; none: they are on the CPU.
  std::optional<at::Device> device() const { return device_; }
  /// Begins to copy the inputs of the call's tasks from the device. Returns one latch per task. It
  /// tells how much has arrived, or, for tensors that stay on the device, that they are ready.
  /// Null: the task has no input on the device.
  std::vector<std::shared_ptr<InputLatch>> read(const DeviceLanes::Lane& lane,
                                                const std::vector<TaskMemory>& tasks,
                                                const std::shared_ptr<CompletionQueue>& queue);
  /// Enqueues the copies of the tasks' results to the device, for the tasks given to `read`.
  /// Returns one gate per task, which the task opens as it progresses; null: it has no results
  /// there. Releases the tensors on the device: from now on the streams keep their memory.
  std::vector<std::shared_ptr<OutputGate>> write();
  /// Null if the call's tensors are on the CPU.
  DeviceStream* stream() const { return stream_.get(); }

 private:
  bool is_on_device(const at::Tensor& tensor);
  bool is_usable_in_place(const at::Tensor& tensor);
  Region keep(at::Tensor host);

  std::vector<at::Tensor> kept_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  // from, to; in order
  std::function<void()> last_;
  std::optional<at::Device> device_;
  bool stays_on_device_ = false;
  PinnedBuffers pinned_;
  std::vector<TaskMemory> tasks_;
  std::vector<DeviceStream::Copy> on_device_;  // copies after all results; then `finish_` runs
  DeviceStream::Finish finish_;
  std::unique_ptr<DeviceStream> stream_;
};

}  // namespace q7x2
