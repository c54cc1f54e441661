// Reactor: what brings messages of other processes, the requests in progress, and their
// completions. Nothing else.
//
// One worker of UCX serves the network that all hosts share, and one more each private network
// interface. A StreamLane serves pairs of hosts for which one connection is too few. The reactor
// neither waits nor knows about groups and peers: the thread that holds its lock progresses it,
// takes the completions, and tells the tasks.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "transport/net/nics.h"
#include "transport/stream/stream_lane.h"
#include "transport/ucx/device_path.h"
#include "transport/ucx/early_messages.h"
#include "transport/ucx/locked.h"
#include "transport/ucx/request.h"
#include "transport/ucx/ucx.h"
#include "transport/ucx/ucx_runtime.h"

namespace q7x2 {

class Reactor {
 public:
  /// Opens UCX; see open_ucx.
  explicit Reactor(const std::vector<std::string>& net_devices);
  Reactor(const Reactor&) = delete;
  Reactor& operator=(const Reactor&) = delete;

  ReactorLock& lock() { return lock_; }
  const UcpContext& context() const { return ucx_.context; }
  UcpWorker& worker() { return ucx_.worker; }
  /// Names of UCX's transports that this process may use.
  std::vector<std::string> transports() const { return ucx_.context.transports(); }
  /// None if messages without a receive may be moved out of UCX's memory.
  DeviceMemory device_memory() const {
    return ucx_.may_run_out ? DeviceMemory::kNone : device_memory_of(ucx_.context);
  }
  /// Warnings for the user about how UCX was opened. Returns them only once.
  std::vector<std::string> take_warnings(Locked&);
  /// From now on processes of these hosts may connect over TCP too. Before the first call no
  /// process may. Returns false if all of them already may. Throws Error(kTransport).
  bool admit(Locked&, const HostAddresses& hosts);
  const HostAddresses& admitted() const { return admitted_; }
  /// Makes the lane; once. `self`: this process. Throws Error(kTransport).
  StreamLane& open_streams(const StreamOptions& options, const Identity& self,
                           const JobSecret& secret);
  /// Null: there is none.
  StreamLane* streams() const { return streams_.get(); }
  /// To be called now and then: see TcpGate.
  void heed_files(Locked&);
  /// The worker for a private network interface; it is made on first use.
  UcpWorker& private_worker(Locked&, const Nic& nic);

  /// Drives the workers. Returns true if anything happened.
  bool progress(Locked&);
  /// Arms the workers' event descriptors. Returns false if there are events; progress first.
  bool arm(Locked&);
  /// The descriptors that become readable when something has happened, if the workers are armed.
  std::vector<pollfd> events(Locked&) const;
  /// When `progress` must be called even if none is.
  StreamTime due(Locked&) const { return streams_ ? streams_->due() : StreamTime::max(); }
  /// Epoll descriptors that have the TCP sockets of UCX over the shared network and over private
  /// links.
  std::vector<int> worker_fds(Locked&) const;
  /// Number of bytes that were sent by TCP and not acknowledged by the peers' kernels, without
  /// bytes to `silent` hosts.
  size_t unacknowledged_bytes(Locked&, const std::set<IpAddress>& silent) const;

  // Requests. `take_completed` returns each one once, unless it is released before.

  PendingRequest& new_request(Locked&, Task& task, RequestList& list, uint32_t token, int peer,
                              bool is_receive, Wire wire = Wire::kShared);
  void release(Locked&, PendingRequest& pending);
  void send(Locked&, PendingRequest& pending, const UcpEndpoint& endpoint, uint64_t tag,
            const void* data, size_t length, MemoryKind kind = MemoryKind::kHost);
  /// Over the lane, from memory of the host.
  void send(Locked&, PendingRequest& pending, StreamPath& path, uint64_t tag, const void* data,
            size_t length);
  /// Returns false if it has already completed.
  bool receive(Locked&, PendingRequest& pending, UcpWorker& worker, uint64_t tag, uint64_t mask,
               void* data, size_t length, MemoryKind kind = MemoryKind::kHost);
  /// The same over the lane, into memory of the host. Returns false if a message has it already, of
  /// which a part may be missing.
  bool receive_stream(Locked&, PendingRequest& pending, uint64_t tag, uint64_t mask, void* data,
                      size_t length);
  /// Cancels a receive that is in progress.
  void cancel(Locked&, PendingRequest& pending);
  /// From now on `other` is a rival of `pending` and of its rivals.
  void compete(Locked&, PendingRequest& pending, PendingRequest& other);
  /// There is a message for a receive: cancels its rivals. Returns false if there is a message for
  /// one of them already.
  bool win(Locked&, PendingRequest& pending);
  /// Calls `post`, after which the request will complete. Releases the request if `post` throws: a
  /// request that is not posted never completes, and its task would wait for it.
  template <typename Post>
  void posted(Locked& locked, PendingRequest& pending, const Post& post) {
    try {
      post();
    } catch (...) {
      release(locked, pending);
      throw;
    }
  }
  /// Completes a request that UCX does not know.
  void complete(Locked&, PendingRequest& pending, ucs_status_t status, size_t length = 0,
                uint64_t tag = 0);
  /// The oldest completed request; null if there is none. The caller must release it.
  PendingRequest* take_completed(Locked&) { return completions_.take(); }

  // Messages that no receive was posted for.

  /// The tag of such a message that did not come over a private link.
  std::optional<uint64_t> find_unexpected(Locked&, uint64_t tag, uint64_t mask);
  void drop_unexpected(Locked&, uint64_t tag, uint64_t mask);

  // Active messages.

  /// On the shared network.
  void on_message(unsigned id, ucp_am_recv_callback_t callback, void* arg);
  /// On private links; to be called before the first one exists.
  void on_private_message(unsigned id, ucp_am_recv_callback_t callback, void* arg);
  void send_message(Locked&, const UcpEndpoint& endpoint, unsigned id, std::string bytes);
  /// For a long message, up to some megabytes: the receiver finds the bytes in the data, not in the
  /// header.
  void send_payload(Locked&, const UcpEndpoint& endpoint, unsigned id, std::string bytes);

 private:
  struct PrivateWorker {
    explicit PrivateWorker(const Nic& nic) : context({nic.name}, /*tcp_only=*/true) {}

    UcpContext context;
    UcpWorker worker{context};
  };

  bool win(PendingRequest& pending);
  bool give_up(PendingRequest& rival);

  ReactorLock lock_;
  // UCX writes to these, and completes requests, until it is closed.
  EarlyMessages early_;
  Completions completions_;
  RequestPool pool_;
  UcxRuntime ucx_;
  std::map<std::string, std::unique_ptr<PrivateWorker>> private_workers_;  // by interface
  std::vector<UcpWorker*> workers_;                                        // all workers
  std::vector<ucp_am_handler_param_t> private_handlers_;
  std::unique_ptr<StreamLane> streams_;
  unsigned rounds_ = 0;  // counts calls of `progress`
  HostAddresses admitted_;
};

}  // namespace q7x2
