// PeerAddress: how to reach a process, as a text that users may pass around.
//
// A handle names a process and not a group: it stays valid until the process ends, whatever groups
// the process joins or leaves. It carries what a PeerInfo says of the process, the rank that the
// process had in some group when the handle was made, and a seal (transport/trust/job_secret.h).
//
// A handle is a capability: the peer info has the key of the process, so whoever holds the handle
// can talk to it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "transport/peer/peer_info.h"

namespace q7x2 {

class Runtime;

/// What is true of this process in every group: its identity, host, address and transports. The
/// fields that belong to one group are empty.
PeerInfo peer_info_of_process(Runtime& runtime);
/// The same part of another process's peer info.
PeerInfo without_group(const PeerInfo& peer_info);

struct PeerAddress {
  PeerInfo peer_info;  ///< see peer_info_of_process
  int rank = -1;       ///< -1: none

  /// "q7x2-handle:2:" and hexadecimal digits.
  std::string encode(const JobSecret& secret) const;
  /// Throws Error(kInvalidArgument) unless `text` is a handle of this job that this version of q7x2
  /// can read.
  static PeerAddress decode(std::string_view text, const JobSecret& secret);
};

/// Members in an order that follows from the handles alone: by rank, and behind them those without
/// one. Handles of equal rank are ordered by process.
std::vector<PeerAddress> in_rank_order(std::vector<PeerAddress> handles);

}  // namespace q7x2
