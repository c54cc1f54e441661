// What torch's device-generic code asks the stand-in accelerator, and its random numbers.
#pragma once

#include <ATen/core/Generator.h>

namespace accelerator {

/// The CPU generator that kernels draw from in place of the device's `generator`; undefined: of
/// the current device's default one.
at::Generator on_cpu(const at::Generator& generator);

void seed_all(uint64_t seed);

/// Once, when the module is loaded.
void register_hooks();

}  // namespace accelerator
