// Reports when the backward that runs in this thread has ended.
#pragma once

#include <functional>

namespace q7x2 {

/// The number of the backward that runs in this thread; -1: none.
int current_backward();
/// `callback` runs when it has ended, unless it fails. Requires that a backward runs in this
/// thread.
void when_backward_ends(std::function<void()> callback);

}  // namespace q7x2
