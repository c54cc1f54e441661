// Hooks and their options in Python.
#pragma once

#include <pybind11/pybind11.h>

#include "comm_hooks/run/hook.h"

namespace q7x2 {

/// An algorithm and its options, for use with any model.
struct HookFactory {
  MakeHook make;
};

void bind_hook_options(pybind11::module_& module);

}  // namespace q7x2
