// Memory that runs out at a chosen moment.
#pragma once

namespace q7x2::test {

/// From now on the `nth` allocation by this thread throws std::bad_alloc, once; 0: none throws.
void fail_allocation(int nth);
/// Whether that allocation has not happened yet.
bool allocation_will_fail();

}  // namespace q7x2::test
