// Which devices q7x2 takes tensors of, and how it calls their streams.
#pragma once

#include <c10/core/Device.h>

#include "device/accelerators.h"

namespace q7x2 {

/// Throws c10::Error unless `device` is the CPU or an accelerator that q7x2 takes tensors of.
void check_device(const c10::Device& device);
/// `device` is an accelerator. Throws as `check_device` does.
const StreamCalls& calls_of(const c10::Device& device);

}  // namespace q7x2
