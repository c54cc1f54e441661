// Records of past operations, and descriptions of groups, as functions of the Python module.
#pragma once

#include <pybind11/pybind11.h>

namespace q7x2 {

/// Adds flight_json and describe_group to `module`.
void bind_ledger(pybind11::module_& module);

}  // namespace q7x2
