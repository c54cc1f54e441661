// What a rank does before it makes a peer info, which names its connections that broke. The new
// group would use one that the peer info does not name.
#pragma once

namespace q7x2 {

class Runtime;

/// A connection that a failed call holds up is closed soon (TaskTable). Waits for that, about 0.1 s
/// at most.
void await_quiet(Runtime& runtime);
/// Has UCX and the failure detector notice what broke a moment ago.
void hear_of_breaks(Runtime& runtime);

}  // namespace q7x2
