// Whether this process was forked from one that used UCX.
//
// A fork copies no threads. UCX has one that accepts connections by TCP, and starts it once. So in
// a forked child it counts as running, but does not exist, and nobody could connect to the child.
// Shared memory needs no such thread.
#pragma once

namespace q7x2 {

/// This process is a child made by fork, and its parent had a worker of UCX.
void note_forked_ucx();
bool is_forked_from_ucx();

}  // namespace q7x2
