// WholeStaging: the elements are on a device. All of them are copied through pinned host memory
// before and after the call, without any overlap.
//
//   all inputs and residuals -> pinned memory
//   the call runs there
//   all results and residuals -> device
//
// Other residences degrade to it: in a rank's first call of a kind, if the device cannot run the
// Plan that the rank is told, and in calls with a selection, if a message needs more than the
// selected elements. If that is known before the call, tensors are copied strip by strip
// (executor/residence/staged.h).
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "executor/residence/residence.h"

namespace q7x2 {

class WholeStaging final : public Residence {
 public:
  WholeStaging(std::shared_ptr<InputLatch> inputs, ResidentDevice device);

  /// From now on the call's regions and errors are in pinned memory.
  Next enter(const Run& run) override;
  Next leave(const Run& run) override;

 private:
  struct Piece {
    std::byte* device;
    std::byte* host;
    size_t bytes;
    bool is_read;
    bool is_written;
  };

  void add_pieces(const CollectiveCall& call);
  void add(std::byte* data, size_t bytes, bool is_read, bool is_written);
  std::byte* host_of(const std::byte* data) const;

  std::vector<Piece> pieces_;
  std::shared_ptr<std::byte> pinned_;
};

}  // namespace q7x2
