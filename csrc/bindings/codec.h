// Codecs without communication, for measurements and tools.
#pragma once

#include <pybind11/pybind11.h>

namespace q7x2 {

/// Adds Codec to `module`.
void bind_codec(pybind11::module_& module);

}  // namespace q7x2
