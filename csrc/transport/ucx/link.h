// Link: one path to a peer over UCX. Messages in shared memory go through the ShmMatcher.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "transport/ucx/ucx.h"

namespace q7x2 {

/// A connection from a worker of this process to one of the peer. Guarded by the reactor's lock.
class Link {
 public:
  /// There is no path.
  Link() = default;
  /// `address`: that of the peer's worker.
  Link(UcpWorker& worker, std::string address) : worker_(&worker), address_(std::move(address)) {}

  bool exists() const { return worker_ != nullptr; }
  UcpWorker& worker() const { return *worker_; }
  /// The address of the peer's worker.
  const std::string& address() const { return address_; }

  bool is_open() const { return endpoint_ != nullptr; }
  const UcpEndpoint& endpoint() const { return *endpoint_; }
  /// Opens the connection, if it is not open. `on_error(arg, ...)`: see UcpEndpoint. Throws
  /// Error(kTransport).
  void open(UcpEndpoint::ErrorHandler on_error, void* arg) {
    if (!endpoint_) {
      endpoint_ = std::make_unique<UcpEndpoint>(*worker_, address_, on_error, arg);
    }
  }
  /// Closes the connection by force, which completes what was being sent.
  void cut() { endpoint_.reset(); }
  /// Starts to close the connection; with `flush`, after everything that was sent has left. Returns
  /// the request to drive (see UcpEndpoint::close), or null.
  void* close(bool flush) {
    void* const request = endpoint_ ? endpoint_->close(flush) : nullptr;
    endpoint_.reset();
    return request;
  }

 private:
  UcpWorker* worker_ = nullptr;
  std::string address_;
  std::unique_ptr<UcpEndpoint> endpoint_;
};

}  // namespace q7x2
