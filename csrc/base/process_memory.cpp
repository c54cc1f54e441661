#include "base/process_memory.h"

#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/error.h"

namespace q7x2 {
namespace {

using Copy = ssize_t (*)(pid_t, const iovec*, unsigned long, const iovec*, unsigned long,
                         unsigned long);

void copy_all(Copy copy, const char* what, pid_t process, uint64_t address, void* data,
              size_t bytes) {
  auto* mine = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const iovec local{mine, bytes};
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of the other process
    const iovec remote{reinterpret_cast<void*>(address), bytes};
    const ssize_t done = copy(process, &local, 1, &remote, 1, 0);
    if (done <= 0) {
      const int cause = done < 0 ? errno : EFAULT;
      throw Error(cause == ESRCH ? ErrorCode::kPeerFailed : ErrorCode::kTransport,
                  std::string("cannot ") + what + " the memory of process " +
                      std::to_string(process) + ": " + std::strerror(cause));
    }
    mine += done;
    address += static_cast<uint64_t>(done);
    bytes -= static_cast<size_t>(done);
  }
}

}  // namespace

void write_process(pid_t process, uint64_t address, const void* data, size_t bytes) {
  copy_all(process_vm_writev, "write", process, address, const_cast<void*>(data), bytes);
}

void read_process(pid_t process, uint64_t address, void* data, size_t bytes) {
  copy_all(process_vm_readv, "read", process, address, data, bytes);
}

}  // namespace q7x2
