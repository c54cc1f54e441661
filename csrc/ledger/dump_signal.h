// The signal by which a user asks for a dump: SIGUSR2.
//
// It is used only if the program leaves it at its default, which would end the process. The handler
// only writes to an event descriptor; the dump's own thread does the work. In a forked child the
// signal has its default effect, unless the child makes a group itself.
#pragma once

namespace q7x2 {

/// Becomes readable when the signal has arrived; lives as long as the process. Installs the handler
/// unless the program has one. Throws Error(kTransport) if no descriptor is available.
int dump_signal_fd();

}  // namespace q7x2
