// Messages and steps of ranks that may be late, as Python classes.
#pragma once

#include <pybind11/pybind11.h>

namespace q7x2 {

/// Adds PeerMessage, MessageQueue, Mail and Quorum to `module`.
void bind_late(pybind11::module_& module);

}  // namespace q7x2
