// Fabrics in Python: checks their JSON, and stores measured times.
#pragma once

#include <pybind11/pybind11.h>

namespace q7x2 {

/// Adds canonical_fabric, learn_times, remember_times and catalogue_times to `module`.
void bind_fabric(pybind11::module_& module);

}  // namespace q7x2
