// A Fabric's JSON as Python sees it.
#pragma once

#include <pybind11/pybind11.h>

namespace q7x2 {

/// Adds canonical_fabric to `module`.
void bind_fabric(pybind11::module_& module);

}  // namespace q7x2
