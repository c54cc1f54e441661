#include "transport/ucx.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <regex>
#include <set>

#include "transport/shared_memory_limits.h"

namespace q7x2 {
namespace {

// The API version asked for at run time; the headers may be newer.
constexpr unsigned kApiMajor = 1;
constexpr unsigned kApiMinor = 13;

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

// The different texts that the first group of `pattern` matches.
std::vector<std::string> names_in(const std::string& text, const std::regex& pattern) {
  std::set<std::string> names;
  for (std::sregex_iterator it(text.begin(), text.end(), pattern), end; it != end; ++it) {
    names.insert((*it)[1].str());
  }
  return {names.begin(), names.end()};
}

using Config = std::unique_ptr<ucp_config_t, void (*)(ucp_config_t*)>;

Config read_config() {
  ucp_config_t* config = nullptr;
  check_ucx(ucp_config_read(nullptr, nullptr, &config), "read its configuration");
  return {config, ucp_config_release};
}

void exclude(ucp_config_t* config, const std::set<std::string>& without) {
  const std::string allowed = configured_transports();
  const auto left = without_transports(allowed, without);
  if (!left) {
    throw Error(ErrorCode::kTransport, "UCX_TLS=" + allowed + " leaves no other transport");
  }
  check_ucx(ucp_config_modify(config, "TLS", left->c_str()), "set TLS");
}

}  // namespace

void check_ucx(ucs_status_t status, std::string_view what) {
  if (status != UCS_OK) {
    throw Error(ErrorCode::kTransport,
                "UCX could not " + std::string(what) + ": " + ucs_status_string(status));
  }
}

std::string configured_transports() {
  const Config config = read_config();
  const std::string settings = printed([&](std::FILE* out) {
    ucp_config_print(config.get(), out, nullptr, UCS_CONFIG_PRINT_CONFIG);
  });
  static const std::regex kTls(R"((?:^|\n)UCX_TLS=([^\n]*))");
  const std::vector<std::string> found = names_in(settings, kTls);
  return found.empty() ? "all" : found.front();
}

UcpContext::UcpContext(const std::vector<std::string>& net_devices, bool tcp_only,
                       const std::set<std::string>& without)
    : context_(nullptr, ucp_cleanup) {
  const Config owner = read_config();
  ucp_config_t* const config = owner.get();
  // Without this, peer error handling drops shared memory without a word.
  set_default(config, "MM_ERROR_HANDLING", "y");
  // If shared memory runs out, UCX 1.22 takes private memory instead, and crashes because nobody
  // can map it. Now it fails to open the transport, and keeps messages back if it wants more later.
  set_default(config, "POSIX_ALLOC", "md");
  set_default(config, "SYSV_ALLOC", "md");
  // UCX looks at the free space several times, and changes its mind as other ranks take theirs.
  // q7x2 looks once (shared_memory_limits.h).
  set_default(config, "POSIX_SHM_MIN_SIZE", "0");
  // A process in another PID namespace cannot be watched by pidfd; this notices its death.
  set_default(config, "KEEPALIVE_INTERVAL", "200ms");
  if (!net_devices.empty()) {
    std::string list;
    for (const std::string& device : net_devices) {
      list += (list.empty() ? "" : ",") + device;
    }
    set_default(config, "NET_DEVICES", list.c_str());
  }
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
    throw Error(ErrorCode::kTransport,
                "UCX has none of the transports that UCX_TLS=" + configured_transports() +
                    " allows: unset UCX_TLS, or name some that `UCX_TLS=all q7x2 info` shows");
  }
  check_ucx(status, "initialise");
  context_.reset(context);
}

std::vector<std::string> UcpContext::transports() const {
  // UCX 1.13 offers the resources as text only: "#  resource 3  :  md 1  dev 3  flags -- tcp/eth0".
  const std::string report =
      printed([&](std::FILE* out) { ucp_context_print_info(context_.get(), out); });
  static const std::regex kResource(R"(resource\s+\d+\s*:[^\n]*\s([A-Za-z0-9_]+)/[^\n]*)");
  return names_in(report, kResource);
}

UcpWorker::UcpWorker(const UcpContext& context) : worker_(nullptr, ucp_worker_destroy) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucp_worker_h worker = nullptr;
  check_ucx(ucp_worker_create(context.get(), &params, &worker), "create a worker");
  worker_.reset(worker);
  check_ucx(ucp_worker_get_efd(worker, &event_fd_), "give an event descriptor");

  ucp_address_t* address = nullptr;
  size_t length = 0;
  check_ucx(ucp_worker_get_address(worker, &address, &length), "give its address");
  address_.assign(reinterpret_cast<const char*>(address), length);
  ucp_worker_release_address(worker, address);
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
                         void* arg) {
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
  void* request = ucp_ep_close_nbx(endpoint_, &params);
  endpoint_ = nullptr;
  // An error means that the connection is gone already: closed all the same.
  return UCS_PTR_IS_PTR(request) ? request : nullptr;
}

std::vector<std::string> UcpEndpoint::transports() const {
  // UCX 1.13 offers the lanes as text only.
  const std::string report = printed([&](std::FILE* out) { ucp_ep_print_info(endpoint_, out); });
  static const std::regex kLane(R"(lane\[\d+\]:\s+\d+:([A-Za-z0-9_]+)/)");
  return names_in(report, kLane);
}

std::string ucx_version() {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  ucp_get_version(&major, &minor, &release);
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(release);
}

}  // namespace q7x2
