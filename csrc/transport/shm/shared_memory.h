// Memory of UCX that processes of one host load and store directly: allocated by one, mapped by the
// others through `ucp_rkey_ptr`, so that there is no second mechanism beside UCX.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include <ucp/api/ucp.h>

#include "transport/ucx/ucx.h"

namespace q7x2 {

/// A segment that this process owns, and that other users cannot open. Pages are zero until they
/// are written, and take no memory until then. Other processes that have it mapped keep it alive
/// beyond its owner.
class SharedMemory {
 public:
  /// Throws Error(kTransport) where the host has no room or UCX no shared memory.
  SharedMemory(const UcpContext& context, size_t bytes);

  std::byte* data() const { return data_; }
  /// What others need to map it; opaque bytes.
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

/// A segment of another process on this host.
class MappedMemory {
 public:
  /// `key` comes from the SharedMemory, of `bytes`, of the process at the other end of `endpoint`.
  /// Throws Error(kTransport) where it cannot be mapped, or has another length.
  MappedMemory(const UcpEndpoint& endpoint, std::string_view key, size_t bytes);

  std::byte* data() const { return data_; }

 private:
  std::unique_ptr<ucp_rkey, void (*)(ucp_rkey_h)> remote_key_;
  std::byte* data_ = nullptr;
};

}  // namespace q7x2
