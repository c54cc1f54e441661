// What a rank does before it makes a peer info, which names its connections that broke. The new
// group would use one that the peer info does not name.
#pragma once

namespace q7x2 {

class Runtime;

/// Waits until the PeerTable is up to date. A connection that a failed call holds up is closed soon
/// (TaskTable), which is waited for, too; about 0.1 s at most.
void learn_of_breaks(Runtime& runtime);

}  // namespace q7x2
