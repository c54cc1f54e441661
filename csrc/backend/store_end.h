// Waits for the end of a store that rank 0 serves.
#pragma once

#include <chrono>

#include "backend/torch_compat.h"

namespace q7x2 {

/// Unless an agent keeps the store, rank 0's process serves it, and closes it when the default
/// group is destroyed. A rank that makes its next group before that would connect to the old server
/// at the same address, and lose the connection. So this waits until the server is gone, or until
/// `patience` has passed, for example because the user keeps the store. For other kinds of stores
/// it returns at once.
void wait_for_end(const c10::intrusive_ptr<c10d::Store>& store, std::chrono::milliseconds patience);

}  // namespace q7x2
