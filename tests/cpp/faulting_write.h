// A process that faults while it writes to the queue of another process on its host.
#pragma once

#include <sys/mman.h>

#include <string>

#include "transport/ucx/ucx.h"

namespace q7x2::test {

constexpr size_t kFaultingBytes = 64;

inline void* new_page() {
  return ::mmap(nullptr, kFaultingBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

/// Sends two messages from `page` to the worker at `address`. The page becomes unreadable before
/// the second one, which has reserved its entry in the queue when SIGSEGV is raised.
inline void write_and_fault(const std::string& address, unsigned id, void* page) {
  const UcpContext context;
  UcpWorker worker(context);
  UcpEndpoint endpoint(
      worker, address, [](void*, ucp_ep_h, ucs_status_t) {}, nullptr);
  for (const int access : {PROT_READ, PROT_NONE}) {  // the first message makes the connection
    ::mprotect(page, kFaultingBytes, access);
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_AM_SEND_FLAG_EAGER;
    ucp_am_send_nbx(endpoint.get(), id, nullptr, 0, page, kFaultingBytes, &param);
    for (int i = 0; i < 200; ++i) worker.progress();
  }
}

}  // namespace q7x2::test
