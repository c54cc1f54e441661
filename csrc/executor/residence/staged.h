// Staged: the elements are on a device. Strips of them are copied through pinned host memory in the
// order of streams (device/strips.h). The call works on the host memory. A slice begins when its
// input has arrived. When a slice is complete, its part of the result is copied to the device.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "device/output_gate.h"
#include "executor/residence/residence.h"

namespace q7x2 {

class Staged final : public Residence {
 public:
  /// `inputs` is null if the call reads nothing on a device, `outputs` if it writes nothing there.
  Staged(std::shared_ptr<InputLatch> inputs, std::shared_ptr<OutputGate> outputs)
      : Residence(std::move(inputs)), outputs_(std::move(outputs)) {}

  void finish(size_t bytes) override {
    if (outputs_) outputs_->finish(bytes);
  }

 private:
  const std::shared_ptr<OutputGate> outputs_;
};

}  // namespace q7x2
