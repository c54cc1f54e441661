#include "transport/net/port_range.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <string_view>
#include <thread>

#include "base/environment.h"
#include "base/error.h"
#include "base/parse_number.h"

namespace q7x2 {
namespace {

constexpr std::chrono::seconds kTurnPatience{20};
constexpr std::chrono::milliseconds kNap{1};
// In the abstract namespace: it belongs to the network namespace, and disappears with its owner.
constexpr std::string_view kTurnName{"\0q7x2-ports", 12};

/// Whether this process could listen at the port, at all addresses.
bool is_free(uint16_t port) {
  const OwnedFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket < 0) return true;  // the failure has another reason than the port
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  return ::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ||
         errno != EADDRINUSE;
}

}  // namespace

std::optional<PortRange> PortRange::of_environment() {
  const std::string text = environment("Q7X2_PORT_RANGE");
  if (text.empty()) return std::nullopt;
  const size_t dash = text.find('-');
  const std::string_view whole(text);
  const auto first = parse_number<uint16_t>(whole.substr(0, dash));
  const auto last =
      dash == std::string::npos ? std::nullopt : parse_number<uint16_t>(whole.substr(dash + 1));
  if (!first || !last || *first == 0 || *last < *first) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "Q7X2_PORT_RANGE=" + text + ": expected two ports from 1 to 65535, such as 20000-20099");
  }
  return PortRange{*first, *last};
}

std::string PortRange::text() const {
  std::string text = std::to_string(first);
  text += "-";
  return text += std::to_string(last);
}

PortTurn::PortTurn() : name_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::ranges::copy(kTurnName, address.sun_path);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + kTurnName.size());
  const auto give_up = std::chrono::steady_clock::now() + kTurnPatience;
  while (name_ >= 0 && ::bind(name_, reinterpret_cast<const sockaddr*>(&address), length) != 0 &&
         errno == EADDRINUSE && std::chrono::steady_clock::now() < give_up) {
    std::this_thread::sleep_for(kNap);
  }
}

bool PortRange::is_used_up() const {
  for (size_t i = 0; i < size(); ++i) {
    if (is_free(at(i))) return false;
  }
  return true;
}

std::string used_up(const PortRange& range, const std::string& purpose) {
  return "Q7X2_PORT_RANGE=" + range.text() + " has no free port for " + purpose +
         ": each process needs one for heartbeats, and one for each network interface that UCX "
         "uses";
}

}  // namespace q7x2
