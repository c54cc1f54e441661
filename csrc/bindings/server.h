// Server as a Python class.
#pragma once

#include <pybind11/pybind11.h>

namespace q7x2 {

/// Adds Server to `module`.
void bind_server(pybind11::module_& module);

}  // namespace q7x2
