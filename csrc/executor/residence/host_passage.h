// HostPassage: the way through host memory of a compressed call whose tensors are on a device.
#pragma once

#include <memory>

#include "executor/collective/collective_call.h"

namespace q7x2 {

class HostPassage {
 public:
  virtual ~HostPassage() = default;

  // In steps. Each enqueues, and the next one begins when the device has done that. They throw if
  // the device refuses.

  /// The way in, on the device's `to_host`. False: nothing is left to do.
  virtual bool read() = 0;
  /// After `read`: the call uses host memory. Also gives what the device has selected; null: the
  /// host selects.
  virtual std::shared_ptr<const GatheredElements> redirect(CollectiveCall& call) = 0;
  /// The way out, on `to_device`. False: nothing is left to do.
  virtual bool write() = 0;
};

}  // namespace q7x2
