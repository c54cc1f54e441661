// The end of a store that rank 0 owns.
#pragma once

#include <chrono>

#include "backend/torch_compat.h"

namespace q7x2 {

/// Without an agent that keeps the store, rank 0's process serves it, and closes it when the
/// default group is destroyed. Another rank that makes its next group before that would find the
/// old server at the same address, and lose it. This waits until the server is gone, or `patience`
/// has passed, for example because the user keeps the store. Returns at once for stores of other
/// kinds.
void wait_for_end(const c10::intrusive_ptr<c10d::Store>& store, std::chrono::milliseconds patience);

}  // namespace q7x2
