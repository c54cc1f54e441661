#include "transport/ucx/ucx_info.h"

#include <dlfcn.h>
#include <stdio.h>

#include <cstdlib>
#include <memory>
#include <sstream>

#include <ucp/api/ucp.h>

#include "base/error.h"

namespace q7x2 {
namespace {

void check(ucs_status_t status, const char* call) {
  if (status == UCS_OK) return;
  throw Error(ErrorCode::kTransport, std::string(call) + ": " + ucs_status_string(status));
}

struct Free {
  void operator()(char* text) const { std::free(text); }
};

// UCP has no query for its resources, only a report that it prints.
std::string context_report() {
  ucp_config_t* config = nullptr;
  check(ucp_config_read(nullptr, nullptr, &config), "ucp_config_read");
  const std::unique_ptr<ucp_config_t, decltype(&ucp_config_release)> config_owner(
      config, &ucp_config_release);
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_AM | UCP_FEATURE_RMA;
  ucp_context_h context = nullptr;
  check(ucp_init(&params, config, &context), "ucp_init");
  const std::unique_ptr<std::remove_pointer_t<ucp_context_h>, decltype(&ucp_cleanup)> owner(
      context, &ucp_cleanup);

  char* buffer = nullptr;
  size_t length = 0;
  FILE* stream = open_memstream(&buffer, &length);
  if (stream == nullptr) throw Error(ErrorCode::kTransport, "open_memstream");
  ucp_context_print_info(context, stream);
  fclose(stream);
  const std::unique_ptr<char, Free> text(buffer);
  return {buffer, length};
}

// Lines such as "#      resource 3  :  md 1  dev 3  flags -- tcp/eth0".
std::vector<std::string> resources_of(const std::string& report) {
  std::vector<std::string> resources;
  std::istringstream lines(report);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string hash;
    std::string kind;
    words >> hash >> kind;
    if (kind != "resource") continue;
    std::string last;
    for (std::string word; words >> word;) last = word;
    if (last.find('/') != std::string::npos) resources.push_back(last);
  }
  return resources;
}

}  // namespace

UcxInfo ucx_info() {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned patch = 0;
  ucp_get_version(&major, &minor, &patch);
  UcxInfo info;
  info.version = std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
  Dl_info library{};
  if (dladdr(reinterpret_cast<const void*>(&ucp_get_version), &library) != 0) {
    info.library = library.dli_fname;
  }
  info.resources = resources_of(context_report());
  return info;
}

std::string ucx_header_version() {
  return std::to_string(UCP_API_MAJOR) + "." + std::to_string(UCP_API_MINOR);
}

}  // namespace q7x2
