// LateStaging: the way through host memory of a compressed call whose tensors stayed on a device,
// until its Plan came, which that device cannot run.
//
//   all inputs, residuals -> pinned memory;   the call runs there;   all results, residuals ->
//   device
//
// Only a rank's first call of a kind can come to this, because the rank hears of the Plan in it. So
// nothing overlaps here. Later calls pass strip by strip (device/strips.h).
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "executor/collective_call.h"
#include "executor/device_coder.h"

namespace q7x2 {

class LateStaging {
 public:
  /// Takes pinned memory for the regions of `call`, which are on the device, and for its errors.
  LateStaging(const CodingDevice& device, const CollectiveCall& call);

  /// Has `call` use the pinned memory.
  void redirect(CollectiveCall& call) const;
  // Both enqueue copies and throw if the device refuses.

  /// What the call reads, on the device's `to_host`.
  void read();
  /// What it has written, on the device's `to_device`.
  void write();

 private:
  struct Piece {
    std::byte* device;
    std::byte* host;
    size_t bytes;
    bool is_read;
    bool is_written;
  };

  void add(std::byte* data, size_t bytes, bool is_read, bool is_written);
  std::byte* host_of(const std::byte* data) const;

  const CodingDevice device_;
  std::vector<Piece> pieces_;
  std::shared_ptr<std::byte> pinned_;
};

}  // namespace q7x2
