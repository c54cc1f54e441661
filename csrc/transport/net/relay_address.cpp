#include "transport/net/relay_address.h"

#include <string>

#include "base/environment.h"
#include "base/error.h"
#include "transport/net/host_and_port.h"

namespace q7x2 {

std::optional<IpEndpoint> relay_of_environment() {
  constexpr const char* kName = "Q7X2_RELAY";
  constexpr const char* kExpected =
      "the host and port of `q7x2 serve --relay`, such as "
      "relay.example.org:29600";
  const std::string text = environment(kName);
  if (text.empty()) return std::nullopt;
  const HostAndPort given = HostAndPort::parse(kName, text, kExpected);
  if (given.port == 0) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(kName) + "=" + text + ": it has no port; expected " + kExpected);
  }
  return IpEndpoint{given.addresses.front(), given.port};
}

}  // namespace q7x2
