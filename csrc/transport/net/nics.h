// The network interfaces of this host that TCP can use, and which of them leads to the other hosts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/ip_address.h"
#include "transport/net/host_addresses.h"

namespace q7x2 {

/// An interface with an IPv4 address.
struct Nic {
  std::string name;
  uint32_t address = 0;  ///< in host byte order
  uint8_t prefix = 0;    ///< number of address bits that identify its network

  bool same_network(const Nic& other) const;
};

/// The interfaces that are up, without loopback and without the bridges of containers and virtual
/// machines, which lead to no other host.
std::vector<Nic> usable_nics();

/// An interface that has only IPv6.
struct NicV6 {
  std::string name;
  IpAddress address;  ///< not link-local (fe80::)
};

/// The same for interfaces without an IPv4 address. An interface with several addresses has several
/// entries.
std::vector<NicV6> usable_v6_nics();

/// Which network all other hosts of the job can reach, and which other networks this host is on. If
/// the job's hosts are on several networks, a network that only some of them share must not be
/// taken for the one that all share.
struct NicRoles {
  /// UCX may use only these interfaces; empty: it may use all, and all belong to the shared
  /// network.
  std::vector<std::string> shared;
  std::vector<Nic> rails;
  /// Where the other hosts reach this one: IPv4 if it has an interface with IPv4, otherwise IPv6.
  /// The loopback's address if there is no network, because then all ranks are on this host.
  IpAddress address;
  /// Other addresses from which connections of this host may come.
  HostAddresses sources;
};

/// The shared network is the one that leads to MASTER_ADDR, which every rank must reach; otherwise
/// that of the default route. If that is unknown, no network counts as private. UCX then uses all
/// interfaces but the loopback, because each interface costs two milliseconds at its start. UCX is
/// not restricted if the user has set UCX_NET_DEVICES, or if the host has RDMA adapters, whose
/// networks TCP does not show. If no interface is up, this waits up to `silence_limit` for the one
/// that leads to MASTER_ADDR.
NicRoles nic_roles();

/// The first network of `mine` that `theirs` is on too, with another address: indices into both. If
/// both have the same address, there are two networks with the same numbers.
std::optional<std::pair<size_t, size_t>> common_network(const std::vector<Nic>& mine,
                                                        const std::vector<Nic>& theirs);

}  // namespace q7x2
