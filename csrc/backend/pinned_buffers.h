// PinnedBuffers: pinned host memory that stands for device tensors, and the copies between the two.
//
// A task works on regions of host memory. If they are in pinned buffers, the task's input is copied
// from the device, and its output to the device, strip by strip (device/strips.h).
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include <ATen/ATen.h>

#include "backend/device_stream.h"
#include "executor/call/collective_call.h"

namespace q7x2 {

/// The host memory that one task uses.
struct TaskMemory {
  struct Piece {
    Region region;
    size_t element = 1;  ///< bytes per element of the task
  };
  std::vector<Piece> reads;
  std::vector<Piece> writes;
  /// Bytes per element of the task, for positions; a divisor of Strips::kUnit.
  size_t element = 1;
  bool in_strips = true;   ///< the task can begin with a part of its input
  bool on_device = false;  ///< the task works on device memory, so nothing is copied
};

/// The buffers of a call, and its residuals if it is compressed.
TaskMemory memory_of(const CollectiveCall& call);
/// The buffer of a message, which is copied as a whole.
TaskMemory memory_of_message(const Region& region, bool sends);

class PinnedBuffers {
 public:
  /// `host` is pinned and contiguous, with the shape and type of `device`. `is_read`: the input of
  /// tasks is copied from `device`. `is_written`: the output of tasks is copied to it.
  void add(const at::Tensor& device, const at::Tensor& host, bool is_read, bool is_written);

  /// The copies of the task's input from the device. No copies: the task has no input on the
  /// device.
  DeviceStream::Passage reads_of(const TaskMemory& memory) const;
  DeviceStream::Passage writes_of(const TaskMemory& memory) const;

 private:
  struct PinnedBuffer {
    at::Tensor device;
    at::Tensor host;
    bool is_read;
    bool is_written;
    bool is_contiguous;  // the device's tensor is; others are copied as a whole

    /// The offset of a region in it, in bytes. None if the region is elsewhere.
    std::optional<size_t> offset_of(const Region& region) const;
    DeviceStream::Copy copy(bool to_host) const;
    /// The copy of `bytes` bytes from `begin`.
    DeviceStream::Copy copy(bool to_host, size_t begin, size_t bytes) const;
  };

  DeviceStream::Passage passage(const TaskMemory& memory, bool to_host) const;

  std::vector<PinnedBuffer> pinned_;
};

}  // namespace q7x2
