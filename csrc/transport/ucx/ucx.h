// RAII for UCP objects. Nothing here knows about groups or collectives.
//
// Uses only the API of UCX 1.13, so that one binary runs with the wheel's UCX and with a cluster's.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <ucp/api/ucp.h>

#include "base/error.h"
#include "base/memory_kind.h"
#include "transport/net/host_addresses.h"
#include "transport/ucx/tcp_gate.h"

namespace q7x2 {

/// UCX's name for this kind of memory.
ucs_memory_type_t ucx_memory(MemoryKind kind);

/// Throws Error(kTransport), with `what` and the UCX status in its message, unless `status` is
/// UCS_OK.
void check_ucx(ucs_status_t status, std::string_view what);

/// UCX_TLS as the user has set it, in the environment or in UCX's configuration file; "all" if not.
std::string configured_transports();

/// A UCP context set up for q7x2: tag matching, active messages, wake-up, and shared memory that
/// stays on although peer error handling is asked for.
class UcpContext {
 public:
  /// `net_devices`: the network interfaces it may use, all if empty, unless the user has set
  /// UCX_NET_DEVICES. `tcp_only`: no other transport, not even shared memory. `without`: transports
  /// that it must not use, although UCX_TLS allows them. Throws Error(kTransport), also if no
  /// transport is left.
  explicit UcpContext(const std::vector<std::string>& net_devices = {}, bool tcp_only = false,
                      const std::set<std::string>& without = {});

  ucp_context_h get() const { return context_.get(); }
  /// Names of the transports that it may use, for example {"posix", "self", "sysv", "tcp"}.
  std::vector<std::string> transports() const;
  /// Whether it can send and receive memory of that kind.
  bool takes(MemoryKind kind) const;

 private:
  std::unique_ptr<ucp_context, void (*)(ucp_context_h)> context_;
};

/// A UCP worker: progressed by one thread at a time (its owner serialises).
class UcpWorker {
 public:
  explicit UcpWorker(const UcpContext& context);

  ucp_worker_h get() const { return worker_.get(); }
  /// Readable when something has happened after a successful `arm`.
  int event_fd() const { return event_fd_; }
  /// The bytes that a peer needs to connect; opaque.
  const std::string& address() const { return address_; }
  /// Drives communication. Returns true if anything happened.
  bool progress() { return ucp_worker_progress(worker_.get()) != 0; }
  /// Arms the event descriptor. Returns false if events are pending; progress first.
  bool arm();

  /// Only processes of these hosts may connect over TCP. Before the first call no process may.
  /// Throws Error(kTransport).
  void admit(const HostAddresses& hosts) { gate_->open(event_fd_, hosts); }
  /// To be called now and then: see TcpGate.
  void heed_files() { gate_->heed_files(); }

 private:
  std::unique_ptr<TcpGate> gate_;  // outlives the worker that it guards
  std::unique_ptr<ucp_worker, void (*)(ucp_worker_h)> worker_;
  int event_fd_ = -1;
  std::string address_;
};

/// A connection to one peer process, with peer error handling on.
class UcpEndpoint {
 public:
  using ErrorHandler = void (*)(void* arg, ucp_ep_h endpoint, ucs_status_t status);

  /// `address` comes from the peer's UcpWorker. `on_error(arg, ...)` is called from within
  /// `progress` when the connection breaks.
  UcpEndpoint(UcpWorker& worker, const std::string& address, ErrorHandler on_error, void* arg);
  /// Closes by force if `close` was not called.
  ~UcpEndpoint();
  UcpEndpoint(const UcpEndpoint&) = delete;
  UcpEndpoint& operator=(const UcpEndpoint&) = delete;

  ucp_ep_h get() const { return endpoint_; }

  /// Starts to close; with `flush`, after everything that was sent has left. Returns the request to
  /// drive until it completes (ucp_request_check_status, ucp_request_free), or null if it has
  /// completed at once. Without `flush` this may progress the worker.
  void* close(bool flush);

  /// Names of the transports of its lanes, for example {"posix", "sysv"} or {"tcp"}.
  std::vector<std::string> transports() const;

 private:
  UcpWorker& worker_;
  ucp_ep_h endpoint_ = nullptr;
};

/// Version of the UCX library that is loaded, for example "1.22.0".
std::string ucx_version();

}  // namespace q7x2
