#include "transport/bootstrap/network_check.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <string>

#include "base/error.h"
#include "transport/net/interface_names.h"
#include "transport/quirks/forked_ucx.h"
#include "transport/ucx/ucx.h"

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

void refuse_without_network(const std::vector<PeerInfo>& peer_infos, int rank,
                            const std::string& group) {
  for (size_t r = 0; r < peer_infos.size(); ++r) {
    const PeerInfo& peer_info = peer_infos[r];
    if (has_network(peer_info.transports)) continue;
    const bool needs_one = std::ranges::any_of(peer_infos, [&](const PeerInfo& other) {
      return &other != &peer_info && !talk_through_memory(peer_info, other);
    });
    if (!needs_one) continue;
    const bool is_own = static_cast<int>(r) == rank;
    throw Error(
        ErrorCode::kTransport,
        "group '" + group + "': rank " + std::to_string(r) + " (" + describe_process(peer_info) +
            ") has no network to the ranks that it shares no memory with. Its UCX may use " +
            peer_info.transports + ": " +
            (is_own ? why_no_network(configured_transports())
                    : "its own message says what UCX_NET_DEVICES and UCX_TLS allow there, "
                      "and which interfaces there are"),
        static_cast<int>(r));
  }
}

void refuse_nat_without_streams(const std::vector<PeerInfo>& peer_infos, const std::string& group) {
  for (size_t r = 0; r < peer_infos.size(); ++r) {
    for (size_t other = 0; peer_infos[r].behind_nat && other < peer_infos.size(); ++other) {
      const bool is_without = peer_infos[r].stream_port == 0 || peer_infos[other].stream_port == 0;
      if (!is_without || !is_nat_between(peer_infos[r], peer_infos[other])) continue;
      const size_t which = peer_infos[r].stream_port == 0 ? r : other;
      throw Error(ErrorCode::kMismatch,
                  "rank " + std::to_string(r) + " of group '" + group +
                      "' is behind NAT (Q7X2_ADVERTISE), so it needs many connections to rank " +
                      std::to_string(other) + ", and Q7X2_STREAMS is 0 on rank " +
                      std::to_string(which) + ": expected far or 1");
    }
  }
}

void refuse_tcp_after_fork(const std::vector<PeerInfo>& peer_infos, int rank) {
  if (!is_forked_from_ucx()) return;
  const PeerInfo& mine = peer_infos[static_cast<size_t>(rank)];
  for (size_t other = 0; other < peer_infos.size(); ++other) {
    const PeerInfo& peer_info = peer_infos[other];
    if (other == static_cast<size_t>(rank)) continue;
    if (talk_through_memory(mine, peer_info)) continue;
    throw Error(ErrorCode::kInvalidArgument,
                "rank " + std::to_string(rank) +
                    " was forked from a process that used q7x2, and so it can talk through shared "
                    "memory only, but not with rank " +
                    std::to_string(other) + " (" + describe_process(peer_info) +
                    "): fork before the first group is made, or spawn processes",
                rank);
  }
}

}  // namespace q7x2
