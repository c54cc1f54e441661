// PeerInfo: what a rank publishes about itself so that the others of a group can reach it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/ip_address.h"
#include "transport/net/host_addresses.h"
#include "transport/net/nics.h"
#include "transport/trust/job_secret.h"
#include "transport/ucx/device_path.h"

namespace q7x2 {

struct PeerInfo {
  uint64_t process = 0;     ///< random, unique for each process
  ProcessKey key{};         ///< who talks to the process must know it
  int32_t pid = 0;          ///< in the process's own PID namespace
  uint16_t slot = 0;        ///< the group's number at this rank; see transport/ucx/tag.h
  uint16_t world_size = 0;  ///< as this rank was told
  std::string host_key;     ///< equal where memory can be shared and PIDs mean the same
  std::string hostname;
  std::string address;  ///< the UCP worker's
  IpAddress heartbeat_address;
  uint16_t heartbeat_port = 0;  ///< 0: there is none
  HostAddresses sources;        ///< from which its connections may come, beside those above
  std::vector<Nic> rails;       ///< interfaces beside the network that all hosts share
  std::string transports;       ///< of UCX, which the process may use: "posix, sysv, tcp"
  DevicePath device_path = DevicePath::kAuto;        ///< of the group, as this rank was told
  DeviceMemory device_memory = DeviceMemory::kNone;  ///< what UCX does with it in the process
  std::string algorithms;  ///< to which collectives are confined, "ring,sra"; empty: to none
  std::string memory;      ///< key of its ShmChannel's segment; empty where it has none yet
  /// Connections that the rank will not use any more because they broke: with which process, the
  /// number of the one to come, and how many of those before it the rank has opened, over the
  /// shared network and over a private link. Empty if none ever broke.
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
  /// What `renewed` says of the connection to `other`.
  Renewed connection(uint64_t other) const;

  std::string encode() const;
  /// Throws Error(kMismatch) where `bytes` is not a peer info of this version of q7x2, or says what
  /// cannot be.
  static PeerInfo decode(std::string_view bytes);
};

/// "pid 41 on host a".
std::string describe_process(const PeerInfo& peer_info);
/// Whether UCX can send through memory that processes of a host share: whether both have the same
/// one of its transports for that. They are named as `PeerInfo::transports` is.
bool share_memory(std::string_view transports, std::string_view others);
/// Whether nothing goes over TCP between these two: they are on one host, and share memory.
bool talk_through_memory(const PeerInfo& one, const PeerInfo& other);

std::string encode_renewed(const std::vector<PeerInfo::Renewed>& renewed);
/// Throws Error(kMismatch) where `bytes` is not such a list.
std::vector<PeerInfo::Renewed> decode_renewed(std::string_view bytes);

/// For messages: "posix, sysv, tcp".
std::string join_list(const std::vector<std::string>& texts);

/// Several strings in one.
std::string encode_list(const std::vector<std::string>& texts);
/// Throws Error(kMismatch) where `bytes` is not such a list.
std::vector<std::string> decode_list(std::string_view bytes);

}  // namespace q7x2
