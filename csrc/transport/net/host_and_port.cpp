#include "transport/net/host_and_port.h"

#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/parse_number.h"

namespace q7x2 {
namespace {

struct Parts {
  std::string host;
  std::optional<std::string> port;
};

/// Nothing: its brackets do not match. An IPv6 address without brackets has no port.
std::optional<Parts> split(const std::string& text) {
  if (text.starts_with('[')) {
    const size_t end = text.find(']');
    if (end == std::string::npos) return std::nullopt;
    const std::string rest = text.substr(end + 1);
    if (!rest.empty() && !rest.starts_with(':')) return std::nullopt;
    return Parts{text.substr(1, end - 1),
                 rest.empty() ? std::nullopt : std::optional(rest.substr(1))};
  }
  const size_t colon = text.find(':');
  if (colon == std::string::npos || text.find(':', colon + 1) != std::string::npos) {
    return Parts{text, std::nullopt};
  }
  return Parts{text.substr(0, colon), text.substr(colon + 1)};
}

}  // namespace

HostAndPort HostAndPort::parse(const std::string& variable, const std::string& text,
                               const std::string& expected) {
  const auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::kInvalidArgument,
                 variable + "=" + text + ": " + why + "; expected " + expected);
  };
  const std::optional<Parts> parts = split(text);
  if (!parts) throw refuse("its brackets do not match");
  HostAndPort given;
  if (parts->port) {
    const auto port = parse_number<uint16_t>(*parts->port);
    if (!port || *port == 0) throw refuse("'" + *parts->port + "' is no port");
    given.port = *port;
  }
  if (!parts->host.empty()) given.addresses = resolve(parts->host);
  if (given.addresses.empty()) throw refuse("'" + parts->host + "' has no address");
  return given;
}

}  // namespace q7x2
