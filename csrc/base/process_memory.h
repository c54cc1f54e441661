// Copies between the memory of this process and that of another one on the same host, in one copy
// and without its help (process_vm_writev). The kernel allows it to processes of one user, unless
// Yama or a container forbids it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace q7x2 {

/// Addresses are those of the other process. Throws Error: kPeerFailed if there is no such process
/// any more, kTransport if the kernel refuses.
void write_process(pid_t process, uint64_t address, const void* data, size_t bytes);
void read_process(pid_t process, uint64_t address, void* data, size_t bytes);

}  // namespace q7x2
