// The lock of the program that q7x2 runs in: the GIL.
#pragma once

namespace q7x2 {

/// How to ask whether the calling thread holds it. At the end of the process such a thread must not
/// stay in a call (base/process.h), because others wait for the lock.
void set_host_lock(bool (*is_held)());

}  // namespace q7x2
