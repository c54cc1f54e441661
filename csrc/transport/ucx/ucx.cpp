#include "transport/ucx/ucx.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <set>

#include "transport/net/interface_names.h"
#include "transport/net/port_range.h"
#include "transport/quirks/close_by_force.h"
#include "transport/quirks/private_segments.h"
#include "transport/quirks/shared_memory_limits.h"

namespace q7x2 {
namespace {

// The API version asked for at run time; the headers may be newer.
constexpr unsigned kApiMajor = 1;
constexpr unsigned kApiMinor = 13;

// Per shared-memory transport; shared_memory_limits.cpp knows how much memory that takes.
constexpr const char* kQueueLength = "64";
constexpr const char* kBuffers = "96";

// UCX closes a connection by force in the second round.
constexpr int kRoundsToClose = 4;

// Sets `key` unless the user has set UCX_<key>.
void set_default(ucp_config_t* config, const char* key, const char* value) {
  if (std::getenv((std::string("UCX_") + key).c_str()) == nullptr) {
    check_ucx(ucp_config_modify(config, key, value), std::string("set ") + key);
  }
}

// What `print` writes to a file.
std::string printed(const std::function<void(std::FILE*)>& print) {
  char* text = nullptr;
  size_t length = 0;
  std::FILE* stream = open_memstream(&text, &length);
  if (stream == nullptr) {
    throw Error(ErrorCode::kTransport, std::string("open_memstream: ") + std::strerror(errno));
  }
  print(stream);
  std::fclose(stream);
  const std::unique_ptr<char, void (*)(void*)> owner(text, std::free);
  return {text, length};
}

// The different transports in the lines of `report` that contain `mark`. "name/device" is the first
// word after it.
std::vector<std::string> transports_in(const std::string& report, std::string_view mark) {
  std::set<std::string> names;
  for (size_t at = report.find(mark); at != std::string::npos; at = report.find(mark, at)) {
    at += mark.size();
    const std::string line = report.substr(at, report.find('\n', at) - at);
    const size_t end = line.find('/');
    if (end != std::string::npos) {
      const size_t begin = line.find_last_of(" :", end) + 1;  // 0 if there is none
      names.insert(line.substr(begin, end - begin));
    }
  }
  return {names.begin(), names.end()};
}

using Config = std::unique_ptr<ucp_config_t, void (*)(ucp_config_t*)>;

Config read_config() {
  ucp_config_t* config = nullptr;
  check_ucx(ucp_config_read(nullptr, nullptr, &config), "read its configuration");
  return {config, ucp_config_release};
}

// The value of UCX_TLS.
std::string transports_of(const ucp_config_t* config) {
  const std::string settings = "\n" + printed([&](std::FILE* out) {
                                 ucp_config_print(config, out, nullptr, UCS_CONFIG_PRINT_CONFIG);
                               });
  constexpr std::string_view kTls = "\nUCX_TLS=";
  const size_t found = settings.find(kTls);
  if (found == std::string::npos) {
    return "all";
  }
  const size_t begin = found + kTls.size();
  return settings.substr(begin, settings.find('\n', begin) - begin);
}

void exclude(ucp_config_t* config, const std::set<std::string>& without) {
  const std::string allowed = transports_of(config);
  const auto left = without_transports(allowed, without);
  if (!left) {
    throw Error(ErrorCode::kTransport, "UCX_TLS=" + allowed + " leaves no other transport");
  }
  check_ucx(ucp_config_modify(config, "TLS", left->c_str()), "set TLS");
}

/// UCX tries ports of the range at random until one is free, without end if none is free.
std::optional<PortTurn> turn_for_ports(const UcpContext& context) {
  const std::optional<PortRange> ports = PortRange::of_environment();
  if (!ports || std::getenv("UCX_TCP_PORT_RANGE") != nullptr) return std::nullopt;
  const std::vector<std::string> transports = context.transports();
  if (std::ranges::find(transports, "tcp") == transports.end()) return std::nullopt;
  std::optional<PortTurn> turn(std::in_place);
  if (ports->is_used_up()) throw Error(ErrorCode::kTransport, used_up(*ports, "UCX"));
  return turn;
}

/// Sets the defaults of q7x2; settings of the user in UCX_ variables stay.
void set_defaults(ucp_config_t* config) {
  // Without this, peer error handling silently disables shared memory.
  set_default(config, "MM_ERROR_HANDLING", "y");
  // If shared memory runs out, UCX 1.22 takes private memory instead, and crashes because no other
  // process can map it. With this setting it fails to open the transport; if it needs more later,
  // it holds messages back.
  set_default(config, "POSIX_ALLOC", "md");
  set_default(config, "SYSV_ALLOC", "md");
  // The queue's length is that of UCX 1.13; UCX 1.22 has 256. Each entry has a buffer, whose page
  // must be filled at the start. Large messages are not slower, and UCX gets more buffers when it
  // needs them.
  set_default(config, "MM_FIFO_SIZE", kQueueLength);
  set_default(config, "MM_RX_BUFS_GROW", kBuffers);
  // UCX checks the free space several times, and changes its decision as other ranks take theirs.
  // q7x2 checks it once (shared_memory_limits.h).
  set_default(config, "POSIX_SHM_MIN_SIZE", "0");
  // A connection to a host that does not answer must not delay the others, which use the same lock.
  set_default(config, "TCP_CONN_NB", "y");
  // LivenessMonitor watches all peers. UCX would also wake an idle process for this, and never let
  // it sleep again once a peer has closed the queue that UCX writes to.
  set_default(config, "KEEPALIVE_INTERVAL", "inf");
  if (const std::optional<PortRange> ports = PortRange::of_environment()) {
    set_default(config, "TCP_PORT_RANGE", ports->text().c_str());
  }
}

void choose_devices(ucp_config_t* config, const std::vector<std::string>& net_devices) {
  if (net_devices.empty()) return;
  std::string list;
  for (const std::string& device : net_devices) list += (list.empty() ? "" : ",") + device;
  set_default(config, "NET_DEVICES", list.c_str());
  if (net_devices.size() == 1) {
    // UCX would read the routes for each endpoint to find out which interface it prefers.
    set_default(config, "TCP_PREFER_DEFAULT", "n");
  }
}

}  // namespace

ucs_memory_type_t ucx_memory(MemoryKind kind) {
  return kind == MemoryKind::kCuda ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
}

void check_ucx(ucs_status_t status, std::string_view what) {
  if (status != UCS_OK) {
    throw Error(ErrorCode::kTransport,
                "UCX could not " + std::string(what) + ": " + ucs_status_string(status));
  }
}

std::string configured_transports() {
  return transports_of(read_config().get());
}

UcpContext::UcpContext(const std::vector<std::string>& net_devices, bool tcp_only,
                       const std::set<std::string>& without)
    : context_(nullptr, ucp_cleanup) {
  const Config owner = read_config();
  ucp_config_t* const config = owner.get();
  set_defaults(config);
  choose_devices(config, net_devices);
  if (tcp_only) {
    check_ucx(ucp_config_modify(config, "TLS", "tcp"), "set TLS");
  } else if (!without.empty()) {
    exclude(config, without);
  }

  ucp_params_t params{};
  params.field_mask =
      UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.mt_workers_shared = 0;
  params.name = "q7x2";
  ucp_context_h context = nullptr;
  const ucs_status_t status = ucp_init_version(kApiMajor, kApiMinor, &params, config, &context);
  if (status == UCS_ERR_NO_DEVICE) {
    const std::string tls = configured_transports();
    throw Error(ErrorCode::kTransport,
                "UCX has none of the transports that UCX_TLS=" + tls + " allows: " +
                    (std::getenv("UCX_NET_DEVICES") != nullptr
                         ? why_no_network(tls)
                         : "unset UCX_TLS, or name some that `UCX_TLS=all q7x2 info` shows"));
  }
  check_ucx(status, "initialise");
  context_.reset(context);
}

bool UcpContext::takes(MemoryKind kind) const {
  ucp_context_attr_t attributes{};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  check_ucx(ucp_context_query(context_.get(), &attributes), "say which memory it knows");
  return (attributes.memory_types >> ucx_memory(kind) & 1) != 0;
}

std::vector<std::string> UcpContext::transports() const {
  // UCX 1.13 lists the resources as text only: "#  resource 3  :  md 1  dev 3  flags -- tcp/eth0".
  return transports_in(
      printed([&](std::FILE* out) { ucp_context_print_info(context_.get(), out); }), "resource");
}

UcpWorker::UcpWorker(const UcpContext& context) : worker_(nullptr, ucp_worker_destroy) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucp_worker_h worker = nullptr;
  const PrivateSegments before;
  const std::set<int> listening_before = listening_sockets();
  const std::optional<PortTurn> turn = turn_for_ports(context);
  check_ucx(ucp_worker_create(context.get(), &params, &worker), "create a worker");
  worker_.reset(worker);
  before.restrict_newer();
  check_ucx(ucp_worker_get_efd(worker, &event_fd_), "give an event descriptor");

  ucp_address_t* address = nullptr;
  size_t length = 0;
  check_ucx(ucp_worker_get_address(worker, &address, &length), "give its address");
  address_.assign(reinterpret_cast<const char*>(address), length);
  ucp_worker_release_address(worker, address);
  gate_ = std::make_unique<TcpGate>(listening_before, address_);
}

bool UcpWorker::arm() {
  const ucs_status_t status = ucp_worker_arm(worker_.get());
  if (status == UCS_ERR_BUSY) {
    return false;
  }
  check_ucx(status, "arm its event descriptor");
  return true;
}

UcpEndpoint::UcpEndpoint(UcpWorker& worker, const std::string& address, ErrorHandler on_error,
                         void* arg)
    : worker_(worker) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = on_error;
  params.err_handler.arg = arg;
  check_ucx(ucp_ep_create(worker.get(), &params, &endpoint_), "connect to a peer");
}

UcpEndpoint::~UcpEndpoint() {
  if (endpoint_ != nullptr) {
    void* request = close(/*flush=*/false);
    if (request != nullptr) {
      ucp_request_free(request);
    }
  }
}

void* UcpEndpoint::close(bool flush) {
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = flush ? 0U : static_cast<uint32_t>(UCP_EP_CLOSE_FLAG_FORCE);
  std::optional<CloseByForce> by_force;
  if (!flush) by_force.emplace(worker_.event_fd());
  void* request = ucp_ep_close_nbx(endpoint_, &params);
  endpoint_ = nullptr;
  for (int i = 0; i < kRoundsToClose && by_force && by_force->matters(); ++i) {
    worker_.progress();
  }
  // An error means that the connection is already gone, which counts as closed.
  return UCS_PTR_IS_PTR(request) ? request : nullptr;
}

std::vector<std::string> UcpEndpoint::transports() const {
  // UCX 1.13 lists the lanes as text only: "#  lane[0]:  3:sysv/memory.0 md[2] ...".
  return transports_in(printed([&](std::FILE* out) { ucp_ep_print_info(endpoint_, out); }),
                       "lane[");
}

std::string ucx_version() {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  ucp_get_version(&major, &minor, &release);
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(release);
}

}  // namespace q7x2
