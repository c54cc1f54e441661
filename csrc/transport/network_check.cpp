#include "transport/network_check.h"

#include <algorithm>
#include <array>
#include <sstream>

#include "base/error.h"
#include "transport/handle.h"
#include "transport/interface_names.h"
#include "transport/reach.h"
#include "transport/ucx.h"

namespace q7x2 {
namespace {

/// Beginnings of the names of UCX's transports that stay within a host.
constexpr std::array<std::string_view, 11> kLocal{
    "posix", "sysv", "self", "loopback", "cma", "knem", "xpmem", "cuda_", "gdr_", "rocm_", "ze_"};

bool is_local(std::string_view transport) {
  return std::ranges::any_of(kLocal, [&](auto local) { return transport.starts_with(local); });
}

}  // namespace

bool has_network(std::string_view transports) {
  std::istringstream list{std::string(transports)};
  for (std::string name; std::getline(list >> std::ws, name, ',');) {
    if (!is_local(name)) return true;
  }
  return false;
}

void refuse_without_network(const std::vector<Card>& cards, int rank, const std::string& group) {
  for (size_t r = 0; r < cards.size(); ++r) {
    const Card& card = cards[r];
    if (has_network(card.transports)) continue;
    const bool needs_one = std::ranges::any_of(cards, [&](const Card& other) {
      return &other != &card && !talk_through_memory(card, other);
    });
    if (!needs_one) continue;
    const bool is_own = static_cast<int>(r) == rank;
    throw Error(
        ErrorCode::kTransport,
        "group '" + group + "': rank " + std::to_string(r) + " (" + describe_process(card) +
            ") has no network to the ranks that it shares no memory with. Its UCX may use " +
            card.transports + ": " +
            (is_own ? why_no_network(configured_transports())
                    : "its own message says what UCX_NET_DEVICES and UCX_TLS allow there, "
                      "and which interfaces there are"),
        static_cast<int>(r));
  }
}

}  // namespace q7x2
