#include "transport/ucx/reactor.h"

#include <algorithm>
#include <utility>

#include "transport/quirks/tcp_sockets.h"

namespace q7x2 {
namespace {

void request_done(void* request, PendingRequest& pending, ucs_status_t status, size_t length,
                  uint64_t tag) {
  pending.request = nullptr;
  pending.completions->add(pending, status, length, tag);
  ucp_request_free(request);
}

void on_sent(void* request, ucs_status_t status, void* user_data) {
  request_done(request, *static_cast<PendingRequest*>(user_data), status, 0, 0);
}

void on_received(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                 void* user_data) {
  // `info` is a part of the request.
  request_done(request, *static_cast<PendingRequest*>(user_data), status, info->length,
               info->sender_tag);
}

void on_message_sent(void* request, ucs_status_t, void* user_data) {
  delete static_cast<std::string*>(user_data);
  ucp_request_free(request);
}

void send_eagerly(const UcpEndpoint& endpoint, unsigned id, std::string bytes, bool as_header) {
  // UCX reads the bytes until it calls back.
  auto kept = bytes.empty() ? nullptr : std::make_unique<std::string>(std::move(bytes));
  const char* const data = kept ? kept->data() : nullptr;
  const size_t length = kept ? kept->size() : 0;
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = on_message_sent;
  param.user_data = kept.get();
  void* request =
      ucp_am_send_nbx(endpoint.get(), id, as_header ? data : nullptr, as_header ? length : 0,
                      as_header ? nullptr : data, as_header ? 0 : length, &param);
  if (UCS_PTR_IS_PTR(request)) {
    static_cast<void>(kept.release());  // on_message_sent deletes it
  }
}

ucs_status_t status_of(StreamStatus status) {
  switch (status) {
    case StreamStatus::kOk:
      return UCS_OK;
    case StreamStatus::kTruncated:
      return UCS_ERR_MESSAGE_TRUNCATED;
    case StreamStatus::kCancelled:
      return UCS_ERR_CANCELED;
    case StreamStatus::kPathClosed:
      break;
  }
  return UCS_ERR_CONNECTION_RESET;
}

ucp_am_handler_param_t handler_of(unsigned id, ucp_am_recv_callback_t callback, void* arg) {
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = id;
  handler.cb = callback;
  handler.arg = arg;
  return handler;
}

// Rounds of progress until an idle lane is asked whether somebody calls: that costs a system call.
constexpr unsigned kIdleRounds = 64;

void set_handler(const UcpWorker& worker, const ucp_am_handler_param_t& handler) {
  check_ucx(ucp_worker_set_am_recv_handler(worker.get(), &handler), "set a message handler");
}

}  // namespace

Reactor::Reactor(const std::vector<std::string>& net_devices)
    : ucx_(open_ucx(net_devices)), workers_{&ucx_.worker} {}

std::vector<std::string> Reactor::take_warnings(Locked&) {
  return std::exchange(ucx_.warnings, {});
}

bool Reactor::admit(Locked&, const HostAddresses& hosts) {
  if (admitted_.contains(hosts)) return false;
  admitted_.add(hosts);
  for (UcpWorker* worker : workers_) worker->admit(admitted_);
  if (streams_) streams_->admit_hosts(admitted_);
  return true;
}

StreamLane& Reactor::open_streams(const StreamOptions& options, const Identity& self,
                                  const JobSecret& secret) {
  streams_ = std::make_unique<StreamLane>(
      options, self, secret,
      [this](void* request, StreamStatus status, size_t length, uint64_t tag) {
        auto& pending = *static_cast<PendingRequest*>(request);
        pending.request = nullptr;
        completions_.add(pending, status_of(status), length, tag);
      });
  streams_->on_match([this](void* request) { return win(*static_cast<PendingRequest*>(request)); });
  return *streams_;
}

void Reactor::heed_files(Locked&) {
  for (UcpWorker* worker : workers_) worker->heed_files();
}

UcpWorker& Reactor::private_worker(Locked&, const Nic& nic) {
  std::unique_ptr<PrivateWorker>& own = private_workers_[nic.name];
  if (!own) {
    own = std::make_unique<PrivateWorker>(nic);
    own->worker.admit(admitted_);
    for (const auto& handler : private_handlers_) set_handler(own->worker, handler);
    workers_.push_back(&own->worker);
  }
  return own->worker;
}

bool Reactor::progress(Locked&) {
  bool any = false;
  for (UcpWorker* worker : workers_) {
    any |= worker->progress();
  }
  if (ucx_.may_run_out) {
    early_.take_from(ucx_.worker);
  }
  if (streams_ && (!streams_->is_quiet() || ++rounds_ % kIdleRounds == 0)) {
    any |= streams_->progress();
  }
  return any;
}

bool Reactor::arm(Locked&) {
  return std::all_of(workers_.begin(), workers_.end(),
                     [](UcpWorker* worker) { return worker->arm(); });
}

std::vector<pollfd> Reactor::events(Locked&) const {
  std::vector<pollfd> events;
  for (const UcpWorker* worker : workers_) {
    events.push_back({worker->event_fd(), POLLIN, 0});
  }
  if (streams_) events.push_back({streams_->fd(), POLLIN, 0});
  return events;
}

std::vector<int> Reactor::worker_fds(Locked&) const {
  std::vector<int> fds;
  for (const UcpWorker* worker : workers_) fds.push_back(worker->event_fd());
  return fds;
}

size_t Reactor::unacknowledged_bytes(Locked&, const std::set<IpAddress>& silent) const {
  size_t bytes = 0;
  for (const UcpWorker* worker : workers_) {
    bytes += q7x2::unacknowledged_bytes(worker->event_fd(), silent);
  }
  if (streams_) bytes += streams_->unacknowledged_bytes();
  return bytes;
}

// ------------------------------------------------------------------------------------- requests

PendingRequest& Reactor::new_request(Locked&, Task& task, RequestList& list, uint32_t token,
                                     int peer, bool is_receive, Wire wire) {
  PendingRequest& pending = pool_.take();
  pending.task = &task;
  pending.token = token;
  pending.peer = peer;
  pending.is_receive = is_receive;
  pending.wire = wire;
  pending.completions = &completions_;
  list.add(pending);
  return pending;
}

void Reactor::release(Locked&, PendingRequest& pending) {
  for (PendingRequest* each = pending.rival; each != nullptr; each = each->rival) {
    if (each->rival != &pending) continue;
    each->rival = pending.rival == each ? nullptr : pending.rival;
    break;
  }
  pending.list->remove(pending);
  pool_.release(pending);
}

void Reactor::send(Locked&, PendingRequest& pending, const UcpEndpoint& endpoint, uint64_t tag,
                   const void* data, size_t length, MemoryKind kind) {
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.memory_type = ucx_memory(kind);
  param.cb.send = on_sent;
  param.user_data = &pending;
  void* request = ucp_tag_send_nbx(endpoint.get(), data, length, tag, &param);
  if (UCS_PTR_IS_PTR(request)) {
    pending.request = request;
  } else {
    completions_.add(pending, UCS_PTR_STATUS(request), length, tag);
  }
}

void Reactor::send(Locked&, PendingRequest& pending, StreamPath& path, uint64_t tag,
                   const void* data, size_t length) {
  pending.request = &pending;
  streams_->send(path, &pending, tag, data, length);
}

bool Reactor::receive_stream(Locked&, PendingRequest& pending, uint64_t tag, uint64_t mask,
                             void* data, size_t length) {
  pending.request = &pending;
  return !streams_->receive(&pending, tag, mask, data, length);
}

bool Reactor::receive(Locked&, PendingRequest& pending, UcpWorker& worker, uint64_t tag,
                      uint64_t mask, void* data, size_t length, MemoryKind kind) {
  ucp_request_param_t param{};
  // Every completion is reported by the callback, even from inside the call: for a receive that
  // completes at once, UCX 1.13 does not return the length and the tag.
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  param.memory_type = ucx_memory(kind);
  param.cb.recv = on_received;
  param.user_data = &pending;
  pending.worker = &worker;
  if (&worker == &ucx_.worker && early_.receive(pending, tag, mask, data, length)) {
    return !pending.completed;
  }
  void* request = ucp_tag_recv_nbx(worker.get(), data, length, tag, mask, &param);
  if (UCS_PTR_IS_ERR(request)) {
    completions_.add(pending, UCS_PTR_STATUS(request));
    return false;
  }
  if (pending.completed) {
    return false;
  }
  pending.request = request;
  return true;
}

void Reactor::cancel(Locked&, PendingRequest& pending) {
  if (pending.wire == Wire::kStream) {
    streams_->cancel(&pending);
  } else if (!early_.cancel(pending)) {
    ucp_request_cancel(pending.worker->get(), pending.request);
  }
}

void Reactor::compete(Locked&, PendingRequest& pending, PendingRequest& other) {
  other.rival = std::exchange(pending.rival, &other);
  if (other.rival == nullptr) other.rival = &pending;
}

bool Reactor::win(Locked&, PendingRequest& pending) {
  return win(pending);
}

bool Reactor::win(PendingRequest& pending) {
  while (pending.rival != nullptr) {
    PendingRequest& rival = *pending.rival;
    if (!give_up(rival)) return false;
    pending.rival = rival.rival == &pending ? nullptr : rival.rival;
    rival.rival = nullptr;
  }
  return true;
}

bool Reactor::give_up(PendingRequest& rival) {
  if (!rival.completed && rival.in_inbox) {
    completions_.add(rival, UCS_ERR_CANCELED);
  } else if (!rival.completed && rival.wire == Wire::kStream) {
    return streams_->take_back(&rival);
  } else if (!rival.completed && rival.request != nullptr && !early_.has(rival)) {
    ucp_request_cancel(rival.worker->get(), rival.request);
  }
  return rival.completed && rival.status == UCS_ERR_CANCELED;
}

void Reactor::complete(Locked&, PendingRequest& pending, ucs_status_t status, size_t length,
                       uint64_t tag) {
  completions_.add(pending, status, length, tag);
}

// ------------------------------------------------------------------------------------- messages

std::optional<uint64_t> Reactor::find_unexpected(Locked&, uint64_t tag, uint64_t mask) {
  if (const auto early = early_.find(tag, mask)) {
    return early;
  }
  ucp_tag_recv_info_t info{};
  if (ucp_tag_probe_nb(worker().get(), tag, mask, /*remove=*/0, &info) == nullptr) {
    return streams_ ? streams_->find_unexpected(tag, mask) : std::nullopt;
  }
  return info.sender_tag;
}

void Reactor::drop_unexpected(Locked&, uint64_t tag, uint64_t mask) {
  early_.drop(tag, mask);
  if (streams_) streams_->drop_unexpected(tag, mask);
  for (UcpWorker* worker : workers_) {
    for (;;) {
      ucp_tag_recv_info_t info{};
      ucp_tag_message_h message = ucp_tag_probe_nb(worker->get(), tag, mask, /*remove=*/1, &info);
      if (message == nullptr) {
        break;
      }
      // Receives it into an empty buffer, which drops it.
      ucp_request_param_t param{};
      void* request = ucp_tag_msg_recv_nbx(worker->get(), nullptr, 0, message, &param);
      if (UCS_PTR_IS_PTR(request)) {
        ucp_request_free(request);
      }
    }
  }
}

void Reactor::on_message(unsigned id, ucp_am_recv_callback_t callback, void* arg) {
  set_handler(worker(), handler_of(id, callback, arg));
}

void Reactor::on_private_message(unsigned id, ucp_am_recv_callback_t callback, void* arg) {
  private_handlers_.push_back(handler_of(id, callback, arg));
}

void Reactor::send_message(Locked&, const UcpEndpoint& endpoint, unsigned id, std::string bytes) {
  send_eagerly(endpoint, id, std::move(bytes), /*as_header=*/true);
}

void Reactor::send_payload(Locked&, const UcpEndpoint& endpoint, unsigned id, std::string bytes) {
  send_eagerly(endpoint, id, std::move(bytes), /*as_header=*/false);
}

}  // namespace q7x2
