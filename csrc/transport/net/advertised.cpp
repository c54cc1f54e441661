#include "transport/net/advertised.h"

#include <cstdint>
#include <string>
#include <utility>

#include "base/environment.h"
#include "base/error.h"
#include "base/parse_number.h"
#include "transport/net/host_and_port.h"

namespace q7x2 {
namespace {

constexpr const char* kName = "Q7X2_ADVERTISE";

/// The port of this process, of those from `first` on.
uint16_t port_of_process(uint16_t first) {
  const std::string text = environment("LOCAL_RANK");
  const auto local_rank = text.empty() ? uint16_t{0} : parse_number<uint16_t>(text);
  if (!local_rank || first + *local_rank > UINT16_MAX) {
    throw Error(ErrorCode::kInvalidArgument, std::string(kName) +
                                                 ": there is no port for LOCAL_RANK=" + text +
                                                 " from port " + std::to_string(first) + " on");
  }
  return static_cast<uint16_t>(first + *local_rank);
}

}  // namespace

Advertised Advertised::of_environment() {
  const std::string text = environment(kName);
  if (text.empty()) return {};
  if (text == "none") return {.behind_nat = true, .outside = {}, .port = 0};
  HostAndPort given = HostAndPort::parse(
      kName, text,
      "an address or a name, with or without a port, such as 203.0.113.5:31000, or none");
  const uint16_t port = given.port == 0 ? uint16_t{0} : port_of_process(given.port);
  return {.behind_nat = true, .outside = std::move(given.addresses), .port = port};
}

}  // namespace q7x2
