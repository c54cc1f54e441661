// PinnedBuffers: pinned host memory that stands for tensors on a device, and the copies between the
// two.
//
// A task works on regions of host memory. Where they belong to pinned buffers, what it reads is
// copied from the device and what it writes is copied to it, strip by strip (device/strips.h).
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
    size_t element = 1;  ///< its bytes for each element of the task
  };
  std::vector<Piece> reads;
  std::vector<Piece> writes;
  size_t element = 1;      ///< the bytes in which the task counts; a divisor of Strips::kUnit
  bool in_strips = true;   ///< it can begin with a part of what it reads
  bool on_device = false;  ///< it reads and writes there, and nothing passes
};

/// Its buffers, and the residuals of a compressed call.
TaskMemory memory_of(const CollectiveCall& call);
/// A message is sent, or received, as a whole.
TaskMemory memory_of_message(const Region& region, bool sends);

class PinnedBuffers {
 public:
  /// `host` is pinned and contiguous, with the shape and type of `device`. What a task reads is
  /// read from `device` if it `is_read`; what it writes is written there if it `is_written`.
  void add(const at::Tensor& device, const at::Tensor& host, bool is_read, bool is_written);

  /// What the task reads on the device. Without copies: nothing.
  DeviceStream::Passage reads_of(const TaskMemory& memory) const;
  DeviceStream::Passage writes_of(const TaskMemory& memory) const;

 private:
  struct PinnedBuffer {
    at::Tensor device;
    at::Tensor host;
    bool is_read;
    bool is_written;
    bool is_contiguous;  // the device's tensor; others are copied as a whole

    /// Where a region lies in it, in bytes. None: elsewhere.
    std::optional<size_t> offset_of(const Region& region) const;
    DeviceStream::Copy copy(bool to_host) const;
    /// Of so many bytes from `begin`.
    DeviceStream::Copy copy(bool to_host, size_t begin, size_t bytes) const;
  };

  DeviceStream::Passage passage(const TaskMemory& memory, bool to_host) const;

  std::vector<PinnedBuffer> pinned_;
};

}  // namespace q7x2
