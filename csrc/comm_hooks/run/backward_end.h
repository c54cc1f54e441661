// When the backward that runs in this thread is over.
#pragma once

#include <functional>

namespace q7x2 {

/// The number of the backward that runs in this thread; -1: none does.
int current_backward();
/// `callback` runs when it has ended, unless it fails. Needs a backward in this thread.
void when_backward_ends(std::function<void()> callback);

}  // namespace q7x2
