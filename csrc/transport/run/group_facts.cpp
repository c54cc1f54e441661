#include "transport/run/group_facts.h"

#include <cstdlib>
#include <map>
#include <string_view>

#include "base/digest.h"
#include "base/log.h"
#include "transport/group/group.h"
#include "transport/peer/peer_info.h"
#include "transport/quirks/shared_memory_limits.h"
#include "transport/quirks/tcp_sockets.h"
#include "transport/run/runtime.h"

namespace q7x2 {
namespace {

std::string hosts_text(const Membership& members) {
  const auto hosts = ranks_by_host(members);
  std::string text = std::to_string(members.world_size()) +
                     (members.world_size() == 1 ? " rank on " : " ranks on ") +
                     std::to_string(hosts.size()) + (hosts.size() == 1 ? " host: " : " hosts: ");
  const char* separator = "";
  for (const std::vector<int>& ranks : hosts) {
    text += separator + members.peer_info(ranks.front()).hostname +
            (ranks.size() == 1 ? " (rank " : " (ranks ") + ranks_text(ranks) + ")";
    separator = ", ";
  }
  return text;
}

// If UCX_TLS excludes shared memory, the user wants that.
bool wants_memory() {
  const char* const tls = std::getenv("UCX_TLS");
  return tls == nullptr || allows_transport(tls, "sysv") || allows_transport(tls, "posix");
}

// For each pair of ranks the lower one warns, unless the first rank of the host warns for both.
void log_refusals(Group& group) {
  const Membership& members = group.membership();
  const int first = members.host_ranks().front();
  const bool is_covered = group.rank() != first && !group.messages().memory_refusal(first).empty();
  std::map<std::string_view, std::vector<int>> ranks;  // by reason
  for (const int r : members.host_ranks()) {
    if (!group.messages().memory_refusal(r).empty() && (r > group.rank() || is_covered)) {
      ranks[group.messages().memory_refusal(r)].push_back(r);
    }
  }
  for (const auto& [reason, others] : ranks) {
    const Level level = wants_memory() ? Level::kWarn : Level::kInfo;
    log(is_covered ? Level::kDebug : level,
        "group '" + group.membership().name() + "': rank " + std::to_string(group.rank()) +
            " shares no memory with rank" + (others.size() > 1 ? "s " : " ") + ranks_text(others) +
            ", and uses UCX's transports: " + std::string(reason));
  }
}

void log_all_transports(Group& group) {
  Locked locked(group.runtime().lock());
  for (int r = 0; r < group.world_size() && logs(Level::kDebug); ++r) {
    const std::vector<std::string> transports = group.links().transports(locked, r);
    if (!transports.empty()) log_transports(group.membership(), r, transports);
  }
}

void log_private_links(Group& group, Level level) {
  for (int r = 0; r < group.world_size(); ++r) {
    if (r == group.rank() || !group.membership().private_network(group.rank(), r)) continue;
    log(level, "group '" + group.membership().name() + "': the hosts of rank " +
                   std::to_string(group.rank()) + " and of rank " + std::to_string(r) +
                   " have a private link");
  }
}

ConnectionFacts tcp_facts(Group& group, int rank) {
  const Peer& peer = group.membership().peer(rank);
  switch (group.links().wire(rank)) {
    case Wire::kStream:
      return peer.stream == nullptr ? ConnectionFacts()
                                    : ConnectionFacts::of(peer.stream->sockets());
    case Wire::kPrivate:
      return peer.rail.is_open()
                 ? ConnectionFacts::of(sockets_to(peer.rail.worker().event_fd(), peer.rail_address))
                 : ConnectionFacts();
    case Wire::kShared:
    case Wire::kMemory:
      break;
  }
  return peer.same_host
             ? ConnectionFacts()
             : ConnectionFacts::of(sockets_to(group.runtime().reactor().worker().event_fd(),
                                              peer.info.heartbeat_address));
}

}  // namespace

std::vector<std::string> transports_of(Group& group, int rank) {
  Locked locked(group.runtime().lock());
  return group.links().transports(locked, rank);
}

std::vector<PeerFacts> peer_facts(Group& group) {
  std::vector<PeerFacts> facts;
  Locked locked(group.runtime().lock());
  for (int r = 0; r < group.world_size(); ++r) {
    if (r == group.rank()) continue;
    facts.push_back(
        {.rank = r,
         .same_host = group.membership().same_host(r),
         .shares_memory = group.messages().shares_memory(r),
         .memory_refusal = group.messages().memory_refusal(r),
         .transports = group.links().transports(locked, r),
         .has_private_link = group.membership().private_network(group.rank(), r).has_value(),
         .uses_private_link = group.links().wire(r) == Wire::kPrivate,
         .uses_streams = group.links().wire(r) == Wire::kStream,
         .is_encrypted = group.links().wire(r) == Wire::kStream &&
                         group.membership().peer_info(r).encrypts_streams,
         .tcp = tcp_facts(group, r)});
  }
  return facts;
}

std::vector<std::vector<int>> ranks_by_host(const Membership& members) {
  std::vector<std::vector<int>> hosts;
  std::map<std::string_view, size_t> known;
  for (int r = 0; r < members.world_size(); ++r) {
    const auto [host, is_new] = known.try_emplace(members.peer_info(r).host_key, hosts.size());
    if (is_new) hosts.emplace_back();
    hosts[host->second].push_back(r);
  }
  return hosts;
}

std::string identity_of(const Membership& members) {
  Digest digest;
  for (const PeerInfo& peer_info : members.peer_infos()) {
    digest.add(peer_info.process);
    digest.add(peer_info.slot);
  }
  return std::to_string(digest.value());
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
    if (end - i > 1) text += "-" + std::to_string(ranks[end - 1]);
    i = end;
  }
  return text;
}

void log_group(Group& group) {
  log_refusals(group);
  const Level level = group.rank() == 0 ? Level::kInfo : Level::kDebug;
  if (!logs(level)) return;
  const Membership& members = group.membership();
  log(level, "group '" + group.membership().name() + "': rank " + std::to_string(group.rank()) +
                 " of " + hosts_text(members) + "; UCX may use " +
                 members.peer_info(group.rank()).transports);
  log_private_links(group, level);
  log_all_transports(group);
}

}  // namespace q7x2
