// Memory of UCX that processes of one host load and store directly. One process allocates it; the
// others map it through `ucp_rkey_ptr`, so UCX is the only mechanism for shared memory.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include <ucp/api/ucp.h>

#include "transport/ucx/ucx.h"

namespace q7x2 {

/// A segment that this process owns, and that other users cannot open. Pages are zero and take no
/// memory until they are written. The segment lives until its owner and all processes that have
/// mapped it are gone.
class SharedMemory {
 public:
  /// Throws Error(kTransport) if the host has no room or UCX has no shared memory.
  SharedMemory(const UcpContext& context, size_t bytes);

  std::byte* data() const { return data_; }
  /// The bytes that another process needs to map it; opaque.
  const std::string& key() const { return key_; }

 private:
  struct Unmap {
    ucp_context_h context;
    void operator()(ucp_mem_h memory) const { ucp_mem_unmap(context, memory); }
  };

  std::unique_ptr<ucp_mem, Unmap> memory_;
  std::byte* data_ = nullptr;
  std::string key_;
};

/// A segment of another process on this host, mapped into this one.
class MappedMemory {
 public:
  /// `key` is SharedMemory::key of the process at the other end of `endpoint`, and `bytes` the
  /// segment's length. Throws Error(kTransport) if it cannot be mapped, or has another length.
  MappedMemory(const UcpEndpoint& endpoint, std::string_view key, size_t bytes);

  std::byte* data() const { return data_; }

 private:
  std::unique_ptr<ucp_rkey, void (*)(ucp_rkey_h)> remote_key_;
  std::byte* data_ = nullptr;
};

}  // namespace q7x2
