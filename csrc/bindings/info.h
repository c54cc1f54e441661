// What `q7x2 info` reports, as functions of the Python module that return dicts.
#pragma once

#include <pybind11/pybind11.h>

namespace q7x2 {

/// Adds build_info, ucx_info, host_info and cuda_info to `module`.
void bind_info(pybind11::module_& module);

}  // namespace q7x2
