// The lock of the host program: the GIL.
#pragma once

namespace q7x2 {

/// Sets the function that tells whether the calling thread holds the lock. At the end of the
/// process a thread that holds it must not stay in a call (base/process.h), because others wait for
/// it.
void set_host_lock(bool (*is_held)());

}  // namespace q7x2
