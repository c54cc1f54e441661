#include "ucx_pair.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

#include <cuda.h>
#include <ucp/api/ucp.h>

namespace q7x2::test {
namespace {

constexpr int kDeadlineSeconds = 60;
constexpr ucp_tag_t kTag = 7;

void check(ucs_status_t status, const char* what) {
  if (status != UCS_OK)
    throw std::runtime_error(std::string(what) + ": " + ucs_status_string(status));
}

void check(CUresult status, const char* what) {
  if (status != CUDA_SUCCESS)
    throw std::runtime_error(std::string(what) + ": CUDA error " + std::to_string(status));
}

std::vector<std::byte> pattern(size_t bytes) {
  std::vector<std::byte> values(bytes);
  uint32_t state = 1;
  for (std::byte& value : values) {
    state = state * 1664525U + 1013904223U;
    value = static_cast<std::byte>(state >> 24);
  }
  return values;
}

/// To the other rank, or to the parent: bytes with their length in front.
class Channel {
 public:
  explicit Channel(int socket) : socket_(socket) {}

  void put(const void* data, size_t bytes) const {
    const uint64_t length = bytes;
    write_all(&length, sizeof(length));
    write_all(data, bytes);
  }

  std::vector<char> get() const {
    uint64_t length = 0;
    read_all(&length, sizeof(length));
    std::vector<char> data(length);
    read_all(data.data(), length);
    return data;
  }

 private:
  void write_all(const void* data, size_t bytes) const {
    if (send(socket_, data, bytes, MSG_NOSIGNAL) != static_cast<ssize_t>(bytes))
      throw std::runtime_error("the other process is gone");
  }
  void read_all(void* data, size_t bytes) const {
    if (bytes > 0 && recv(socket_, data, bytes, MSG_WAITALL) != static_cast<ssize_t>(bytes))
      throw std::runtime_error("the other process is gone");
  }

  int socket_;
};

class Peer {
 public:
  Peer(const Transfer& transfer, const Channel& other) {
    ucp_config_t* config = nullptr;
    check(ucp_config_read(nullptr, nullptr, &config), "ucp_config_read");
    for (const auto& [name, value] : transfer.settings)
      check(ucp_config_modify(config, name.c_str(), value.c_str()), name.c_str());
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
    const ucs_status_t status = ucp_init(&params, config, &context_);
    ucp_config_release(config);
    check(status, "ucp_init");
    ucp_worker_params_t worker_params{};
    check(ucp_worker_create(context_, &worker_params, &worker_), "ucp_worker_create");
    check(ucp_worker_get_efd(worker_, &events_), "ucp_worker_get_efd");

    ucp_address_t* address = nullptr;
    size_t length = 0;
    check(ucp_worker_get_address(worker_, &address, &length), "ucp_worker_get_address");
    other.put(address, length);
    ucp_worker_release_address(worker_, address);
    const std::vector<char> remote = other.get();
    ucp_ep_params_t ep_params{};
    ep_params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                           UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    ep_params.address = reinterpret_cast<const ucp_address_t*>(remote.data());
    ep_params.err_mode = UCP_ERR_HANDLING_MODE_PEER;  // as q7x2 has it
    ep_params.err_handler.cb = [](void*, ucp_ep_h, ucs_status_t) {};
    check(ucp_ep_create(worker_, &ep_params, &endpoint_), "ucp_ep_create");
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  ~Peer() {
    ucp_worker_destroy(worker_);
    ucp_cleanup(context_);
  }

  void send(void* data, size_t bytes) {
    const ucp_request_param_t param = on_device();
    await(ucp_tag_send_nbx(endpoint_, data, bytes, kTag, &param), "ucp_tag_send_nbx");
    const ucp_request_param_t plain{};
    await(ucp_ep_flush_nbx(endpoint_, &plain), "ucp_ep_flush_nbx");
  }

  void receive(void* data, size_t bytes) {
    const ucp_request_param_t param = on_device();
    await(ucp_tag_recv_nbx(worker_, data, bytes, kTag, ~ucp_tag_t{0}, &param), "ucp_tag_recv_nbx");
  }

  /// Goes on to serve the other one until that has said something.
  void serve(int socket) {
    pollfd ready = {socket, POLLIN, 0};
    while (poll(&ready, 1, 0) == 0) progress(socket);
  }

 private:
  static ucp_request_param_t on_device() {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    param.memory_type = UCS_MEMORY_TYPE_CUDA;
    return param;
  }

  /// As q7x2 waits: sleeps until UCX, or the socket if it is not negative, has something to do.
  void progress(int socket) {
    if (ucp_worker_progress(worker_) != 0) return;
    const ucs_status_t status = ucp_worker_arm(worker_);
    if (status == UCS_ERR_BUSY) return;
    check(status, "ucp_worker_arm");
    pollfd ready[] = {{events_, POLLIN, 0}, {socket, POLLIN, 0}};
    poll(ready, 2, -1);
  }

  void await(ucs_status_ptr_t request, const char* what) {
    if (UCS_PTR_IS_ERR(request)) check(UCS_PTR_STATUS(request), what);
    if (request == nullptr) return;
    ucs_status_t status = UCS_INPROGRESS;
    while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) progress(-1);
    ucp_request_free(request);
    check(status, what);
  }

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  int events_ = -1;
};

/// The difference of two counts, field by field.
FakeCudaCopies since(const FakeCudaCopies& before) {
  using Fields = std::array<uint64_t, sizeof(FakeCudaCopies) / sizeof(uint64_t)>;
  FakeCudaCopies now{};
  fake_cuda_copies(&now);
  Fields difference{};
  Fields start{};
  std::memcpy(difference.data(), &now, sizeof(now));
  std::memcpy(start.data(), &before, sizeof(before));
  for (size_t i = 0; i < start.size(); ++i) difference[i] -= start[i];
  std::memcpy(&now, difference.data(), sizeof(now));
  return now;
}

FakeCudaCopies run_rank(const Transfer& transfer, bool is_sender, int other_socket) {
  alarm(kDeadlineSeconds);
  const Channel other(other_socket);
  CUcontext context = nullptr;
  check(cuInit(0), "cuInit");
  check(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
  check(cuCtxPushCurrent(context), "cuCtxPushCurrent");
  CUdeviceptr memory = 0;
  check(cuMemAlloc(&memory, transfer.bytes), "cuMemAlloc");
  const std::vector<std::byte> expected = pattern(transfer.bytes);
  std::vector<std::byte> bytes(transfer.bytes);
  check(cuMemcpyHtoD(memory, is_sender ? expected.data() : bytes.data(), transfer.bytes), "fill");

  FakeCudaCopies before{};
  FakeCudaCopies moved{};
  {
    Peer peer(transfer, other);
    fake_cuda_copies(&before);
    if (is_sender) {
      peer.send(reinterpret_cast<void*>(memory), transfer.bytes);
    } else {
      peer.receive(reinterpret_cast<void*>(memory), transfer.bytes);
    }
    moved = since(before);
    other.put("done", 4);
    peer.serve(other_socket);
    other.get();
  }
  check(cuMemcpyDtoH(bytes.data(), memory, transfer.bytes), "read");
  if (bytes != expected) throw std::runtime_error("wrong bytes arrived");
  check(cuMemFree(memory), "cuMemFree");
  return moved;
}

[[noreturn]] void rank_process(const Transfer& transfer, bool is_sender, int other, int parent) {
  const Channel report(parent);
  int code = EXIT_SUCCESS;
  try {
    const FakeCudaCopies copies = run_rank(transfer, is_sender, other);
    report.put(&copies, sizeof(copies));
  } catch (const std::exception& error) {
    const std::string text = error.what();
    report.put(text.data(), text.size());
    code = EXIT_FAILURE;
  }
  _exit(code);
}

}  // namespace

Outcome move_device_memory(const Transfer& transfer) {
  int between[2];
  int reports[2][2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, between) != 0) throw std::runtime_error("socketpair");
  pid_t processes[2];
  for (int rank = 0; rank < 2; ++rank) {
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, reports[rank]) != 0)
      throw std::runtime_error("socketpair");
    processes[rank] = fork();
    if (processes[rank] < 0) throw std::runtime_error("fork");
    if (processes[rank] == 0) {
      close(between[1 - rank]);
      rank_process(transfer, rank == 0, between[rank], reports[rank][1]);
    }
    close(reports[rank][1]);
  }
  close(between[0]);
  close(between[1]);
  Outcome outcome;
  for (int rank = 0; rank < 2; ++rank) {
    const std::string name = rank == 0 ? "sender" : "receiver";
    std::vector<char> report;
    try {
      report = Channel(reports[rank][0]).get();
    } catch (const std::exception&) {
    }
    close(reports[rank][0]);
    int status = 0;
    waitpid(processes[rank], &status, 0);
    if (WIFSIGNALED(status)) {
      outcome.problem += name + ": " + strsignal(WTERMSIG(status)) + "; ";
    } else if (WEXITSTATUS(status) != EXIT_SUCCESS) {
      outcome.problem += name + ": " + std::string(report.begin(), report.end()) + "; ";
    } else {
      std::memcpy(rank == 0 ? &outcome.sender : &outcome.receiver, report.data(), report.size());
    }
  }
  return outcome;
}

}  // namespace q7x2::test
