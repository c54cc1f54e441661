// Windows, on tensors.
#pragma once

#include <pybind11/pybind11.h>

namespace q7x2 {

/// Adds WindowQ7x2 to `module`, after the backend.
void bind_window(pybind11::module_& module);

}  // namespace q7x2
