// Plans as plain data, for pictures and tools.
#pragma once

#include <pybind11/pybind11.h>

namespace q7x2 {

/// Adds make_plans to `module`.
void bind_plan(pybind11::module_& module);

}  // namespace q7x2
