// Communication hooks of DDP: how Python attaches and reads them.
#pragma once

#include <pybind11/pybind11.h>

namespace q7x2 {

/// Adds HookRunner and the functions that make one to `module`.
void bind_comm_hooks(pybind11::module_& module);

}  // namespace q7x2
