#include "transport/stream/stream_options.h"

#include <sys/socket.h>

#include <cerrno>
#include <fstream>
#include <string>

#include "base/environment.h"
#include "base/error.h"
#include "transport/net/congestion.h"
#include "transport/net/private_socket.h"
#include "transport/net/silence_limit.h"
#include "transport/stream/tls_context.h"

namespace q7x2 {
namespace {

bool encrypts_streams() {
  const std::string text = environment("Q7X2_ENCRYPT");
  if (text.empty() || text == "1") return true;
  if (text == "0") return false;
  throw Error(ErrorCode::kInvalidArgument,
              "Q7X2_ENCRYPT=" + text +
                  ": expected 1 (many connections between two hosts are encrypted) or 0 (they are "
                  "not)");
}

/// A name that this kernel does not have would be ignored.
void check_congestion(const std::string& name) {
  const PrivateSocket socket = PrivateSocket::open(AF_INET);
  if (socket.is_valid() && set_congestion(socket, name)) return;
  const bool is_forbidden = errno == EPERM;
  std::ifstream file(is_forbidden ? "/proc/sys/net/ipv4/tcp_allowed_congestion_control"
                                  : "/proc/sys/net/ipv4/tcp_available_congestion_control");
  std::string names;
  std::getline(file, names);
  throw Error(ErrorCode::kInvalidArgument,
              "Q7X2_CONGESTION=" + name + ": expected a congestion control that " +
                  (is_forbidden ? "this user may choose" : "this kernel has") +
                  (names.empty() ? "" : ": " + names));
}

}  // namespace

StreamChoice stream_choice() {
  const std::string text = environment("Q7X2_STREAMS");
  if (text.empty() || text == "far") return StreamChoice::kFar;
  if (text == "0") return StreamChoice::kNever;
  if (text == "1") return StreamChoice::kAlways;
  throw Error(ErrorCode::kInvalidArgument,
              "Q7X2_STREAMS=" + text +
                  ": expected 0 (never many connections between two hosts), 1 (always), or far "
                  "(if their latency is long)");
}

StreamOptions StreamOptions::of_environment() {
  StreamOptions options;
  options.silence = silence_limit();
  if (encrypts_streams()) options.tls = std::make_shared<const TlsContext>();
  options.congestion = environment("Q7X2_CONGESTION");
  if (!options.congestion.empty()) check_congestion(options.congestion);
  return options;
}

}  // namespace q7x2
