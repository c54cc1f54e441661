// ProcessGroupQ7x2 and its options as Python classes.
#pragma once

#include <pybind11/pybind11.h>

namespace q7x2 {

/// Adds ProcessGroupQ7x2, Options and create_backend to `module`.
void bind_backend(pybind11::module_& module);

}  // namespace q7x2
