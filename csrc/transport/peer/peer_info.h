// PeerInfo: what a rank publishes about itself so that the other ranks of a group can reach it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/ip_address.h"
#include "transport/net/host_addresses.h"
#include "transport/net/nics.h"
#include "transport/stream/stream_options.h"
#include "transport/trust/job_secret.h"
#include "transport/ucx/device_path.h"

namespace q7x2 {

struct PeerInfo {
  uint64_t process = 0;     ///< random, unique per process
  ProcessKey key{};         ///< needed to send messages to the process
  int32_t pid = 0;          ///< in the process's own PID namespace
  uint16_t slot = 0;        ///< the group's number at this rank; see transport/ucx/tag.h
  uint16_t world_size = 0;  ///< as given to this rank
  std::string host_key;     ///< equal if memory can be shared and PIDs mean the same
  std::string hostname;
  std::string address;  ///< the UCP worker's address
  IpAddress heartbeat_address;
  uint16_t heartbeat_port = 0;  ///< 0: none
  uint16_t stream_port = 0;     ///< where its StreamLane listens; 0: it has none
  StreamChoice streams = StreamChoice::kNever;
  bool encrypts_streams = false;  ///< its StreamLane
  /// Its network translates addresses (Advertised): processes of others call its lane at `outside`,
  /// or not at all.
  bool behind_nat = false;
  std::vector<IpAddress> outside;
  IpEndpoint relay;        ///< where it waits for calls, too (RelayLine); port 0: nowhere
  HostAddresses sources;   ///< other addresses from which its connections may come
  std::vector<Nic> rails;  ///< interfaces other than that of the shared network
  std::string transports;  ///< that UCX may use in this process: "posix, sysv, tcp"
  DevicePath device_path = DevicePath::kAuto;        ///< the group's, as given to this rank
  DeviceMemory device_memory = DeviceMemory::kNone;  ///< how UCX in this process handles it
  std::string algorithms;     ///< the only ones allowed for collectives, "ring,sra"; empty: all
  std::string attached_hook;  ///< Q7X2_ATTACH
  std::string memory;         ///< key of its ShmChannel's segment; empty if it has no segment yet
  /// What the layers above the transport say of the rank in this group; see WireUp.
  std::string announcement;
  /// Connections that the rank will not use any more because they broke: the other process, the
  /// number of the next incarnation, and how many connections the rank has opened before it, over
  /// the shared network and over a private link. Empty if none ever broke.
  struct Renewed {
    uint64_t process = 0;
    uint32_t incarnation = 0;
    uint32_t opened = 0;
    uint32_t opened_rail = 0;
  };
  std::vector<Renewed> renewed;

  Identity identity() const { return {process, key}; }
  /// All addresses from which its connections may come.
  HostAddresses addresses() const;
  /// The entry of `renewed` for the connection to `other`.
  Renewed connection(uint64_t other) const;

  std::string encode() const;
  /// Throws Error(kMismatch) if `bytes` is not a peer info of this version of q7x2, or has
  /// impossible values.
  static PeerInfo decode(std::string_view bytes);
};

/// "pid 41 on host a".
std::string describe_process(const PeerInfo& peer_info);
/// Whether UCX can send between two processes of a host through shared memory: whether both have
/// the same one of its shared-memory transports. The arguments have the format of
/// `PeerInfo::transports`.
bool share_memory(std::string_view transports, std::string_view others);
/// Whether one of them is behind NAT, and not on the same host: they use many connections, however
/// near they are.
bool is_nat_between(const PeerInfo& one, const PeerInfo& other);
/// Whether neither can be called from outside: they may need a relay.
bool are_both_hidden(const PeerInfo& one, const PeerInfo& other);
/// Where the lane of `to` is called. Empty: it calls `from`.
std::vector<IpEndpoint> stream_addresses(const PeerInfo& from, const PeerInfo& to);
/// Whether the two use no TCP between them: they are on one host, and share memory.
bool talk_through_memory(const PeerInfo& one, const PeerInfo& other);

std::string encode_renewed(const std::vector<PeerInfo::Renewed>& renewed);
/// Throws Error(kMismatch) if `bytes` is not such a list.
std::vector<PeerInfo::Renewed> decode_renewed(std::string_view bytes);

/// For messages: "posix, sysv, tcp".
std::string join_list(const std::vector<std::string>& texts);

/// Encodes several strings as one.
std::string encode_list(const std::vector<std::string>& texts);
/// Throws Error(kMismatch) if `bytes` is not such a list.
std::vector<std::string> decode_list(std::string_view bytes);

}  // namespace q7x2
