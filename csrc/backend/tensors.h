// From torch's tensors, dtypes and reductions to the bytes that the layers below work on.
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

/// The element type of a reduction over `tensor`. Throws for those that q7x2 cannot reduce.
DType reducible_dtype(const at::Tensor& tensor);

/// A c10d reduction, taken apart. `premultiply` applies the factor of PREMUL_SUM to a contribution.
struct Reduction {
  ReduceKind kind = ReduceKind::kSum;
  int divisor = 1;
  std::optional<double> factor;
  std::optional<at::Tensor> tensor_factor;

  Reduction(const c10d::ReduceOp& op, int world_size);
  bool premultiplies() const { return factor.has_value() || tensor_factor.has_value(); }
  at::Tensor premultiply(const at::Tensor& contribution) const;
};

/// The host memory one call works on. Contiguous CPU tensors are used where they lie; others
/// (strided, conjugated) through a contiguous copy, copied back at the end. Tensors on a device are
/// copied to pinned memory and back in the order of streams, from `read` to the end of the call.
/// Keeps all of it alive.
class HostBuffers {
 public:
  /// Read only.
  Region input(const at::Tensor& tensor);
  /// Written entirely.
  Region output(const at::Tensor& tensor);
  /// A tensor that occurs in a call twice contributes what it holds now, both times.
  Region in_place(const at::Tensor& tensor);
  /// A copy that belongs to the call, to be read and written.
  Region private_copy(const at::Tensor& tensor);
  Region private_copy(Region region);

  /// After `copy_back`, copies `source` to `destination` too.
  void also_copy(const at::Tensor& source, const at::Tensor& destination);
  /// From now on regions of tensors on a device are memory of that device, which the host does not
  /// touch. Tensors must be contiguous, and occur in the call once.
  void stay_on_device() { stays_on_device_ = true; }
  /// Runs `last` after all copies. It writes to tensors on `device`.
  void then(std::function<void()> last, at::Device device);
  /// The same for a call whose tensors are on a device, in the order of streams: the host does not
  /// come back for it.
  void then(DeviceStream::Finish finish) { finish_ = std::move(finish); }
  /// Whether the host has to do something at the end.
  bool has_copies() const { return !copies_.empty() || last_ != nullptr; }
  /// Makes the results visible in the caller's tensors. Any thread.
  void copy_back() const;

  /// The device of the call's tensors; none: they are on the CPU.
  std::optional<at::Device> device() const { return device_; }
  /// Begins to copy to the host what the call's tasks read on its device. Returns for each task
  /// what tells of the arrivals, or, if it stays on the device, that its tensors are ready; null:
  /// it reads nothing there.
  std::vector<std::shared_ptr<InputLatch>> read(const DeviceLanes::Lane& lane,
                                                const std::vector<TaskMemory>& tasks,
                                                const std::shared_ptr<CompletionQueue>& queue);
  /// Has the results of the tasks of `read` copied to the device. Returns for each task what it
  /// tells of its progress; null: it writes nothing there. Lets go of the tensors on the device:
  /// from now on the streams keep their memory.
  std::vector<std::shared_ptr<OutputGate>> write();
  /// Null: the call's tensors are on the CPU.
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
  std::vector<DeviceStream::Copy> on_device_;  // after all results; then comes
  DeviceStream::Finish finish_;
  std::unique_ptr<DeviceStream> stream_;
};

}  // namespace q7x2
