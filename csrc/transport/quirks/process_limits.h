// Checks whether the process may still open what UCX needs.
#pragma once

namespace q7x2 {

/// UCX ends the process if it cannot start its thread or open a file. This function first tries the
/// same: file descriptors, threads and address space. Throws Error(kTransport); its message says
/// what is missing, how much is needed and which limit to raise.
void check_process_limits();

/// Whether the process can open one more file.
bool can_open_file();

}  // namespace q7x2
