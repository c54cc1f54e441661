// From torch's tensors, dtypes and reductions to the bytes that the layers below work on.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "backend/device_stream.h"
#include "backend/torch_compat.h"
#include "base/types.h"
#include "executor/collective.h"

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
/// copied to pinned memory and back in the order of streams, between `read` and the end of the
/// call. Keeps all of it alive.
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
  /// Runs `last` after all copies. It writes to tensors on `device`.
  void then(std::function<void()> last, at::Device device);
  /// Whether the host has to do something at the end.
  bool has_copies() const { return !copies_.empty() || last_ != nullptr; }
  /// Makes the results visible in the caller's tensors. Any thread.
  void copy_back() const;

  /// The device of the call's tensors; none: they are on the CPU.
  std::optional<at::Device> device() const { return device_; }
  /// Begins to copy to the host what the call reads on a device; `latch` opens when it is there.
  /// False: the call reads nothing there.
  bool read(const DeviceLanes::Lane& lane, std::shared_ptr<InputLatch> latch);
  /// Has the results copied to the device when the call is over.
  void write() { stream_->write(writes_); }
  /// Null: the call's tensors are on the CPU.
  DeviceStream* stream() const { return stream_.get(); }

 private:
  bool is_on_device(const at::Tensor& tensor);
  Region keep(at::Tensor host);

  std::vector<at::Tensor> kept_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  // from, to; in order
  std::function<void()> last_;
  std::optional<at::Device> device_;
  std::vector<DeviceStream::Copy> reads_;
  std::vector<DeviceStream::Copy> writes_;
  std::unique_ptr<DeviceStream> stream_;
};

}  // namespace q7x2
