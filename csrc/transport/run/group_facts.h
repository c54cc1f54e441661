// What is known about a group, for people: its hosts, which ranks share memory, the connection to
// each rank.
#pragma once

#include <string>
#include <vector>

#include "transport/group/membership.h"
#include "transport/net/connection_facts.h"

namespace q7x2 {

class Group;

/// Another rank of a group, and the connection to it, as this rank sees them.
struct PeerFacts {
  int rank = -1;
  bool same_host = false;
  bool shares_memory = false;
  std::string memory_refusal;           ///< why not, if both are on one host
  std::vector<std::string> transports;  ///< those of UCX; empty: not connected yet
  bool has_private_link = false;
  bool uses_private_link = false;
  bool uses_streams = false;  ///< many connections
  bool is_encrypted = false;
  /// Over TCP; with UCX, those to all ranks of its host.
  ConnectionFacts tcp;
};

/// See GroupLinks. Takes the reactor's lock.
std::vector<std::string> transports_of(Group& group, int rank);

/// By rank, without this one. Takes the reactor's lock.
std::vector<PeerFacts> peer_facts(Group& group);

/// Ranks by host, in the order of their first ranks.
std::vector<std::vector<int>> ranks_by_host(const Membership& members);

/// The same on all ranks of a group, and of no other group.
std::string identity_of(const Membership& members);

/// "0-2, 7".
std::string ranks_text(const std::vector<int>& ranks);

/// Writes to the log what a new group consists of: its hosts, memory that is not shared and why,
/// private links.
void log_group(Group& group);

}  // namespace q7x2
