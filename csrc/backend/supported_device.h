// The devices that q7x2 supports, and the functions for their streams.
#pragma once

#include <c10/core/Device.h>

#include "device/accelerators.h"

namespace q7x2 {

/// Throws c10::Error unless `device` is the CPU or a supported accelerator.
void check_device(const c10::Device& device);
/// The stream functions of `device`, an accelerator. Throws as `check_device`.
const StreamCalls& calls_of(const c10::Device& device);

}  // namespace q7x2
