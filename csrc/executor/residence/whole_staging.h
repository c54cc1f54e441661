// WholeStaging: the way through host memory of a compressed call whose tensors stayed on a device,
// until it turned out that it cannot run there.
//
//   all inputs, residuals -> pinned memory;   the call runs there;   all results, residuals ->
//   device
//
// A rank's first call of a kind comes to this if it hears of a Plan that the device cannot run; and
// calls with a selection, if a message needs more than what was selected. Nothing overlaps here.
// Where that is known before the call, tensors pass strip by strip (device/strips.h).
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "executor/collective/collective_call.h"
#include "executor/residence/device_coder.h"
#include "executor/residence/host_passage.h"

namespace q7x2 {

class WholeStaging final : public HostPassage {
 public:
  /// Takes pinned memory for the regions of `call`, which are on the device, and for its errors.
  WholeStaging(const ResidentDevice& device, const CollectiveCall& call);

  bool read() override;
  std::shared_ptr<const GatheredElements> redirect(CollectiveCall& call) override;
  bool write() override;

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

  const ResidentDevice device_;
  std::vector<Piece> pieces_;
  bool is_read_ = false;
  bool is_written_ = false;
  std::shared_ptr<std::byte> pinned_;
};

}  // namespace q7x2
