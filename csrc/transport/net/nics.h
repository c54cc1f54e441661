// The network interfaces of this host that TCP can use, and which of them is the way to the others.
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
  uint8_t prefix = 0;    ///< bits of the address that name its network

  bool same_network(const Nic& other) const;
};

/// The interfaces that are up, apart from loopback and from the bridges that containers and virtual
/// machines of a host hang on: those lead nowhere else.
std::vector<Nic> usable_nics();

/// An interface that has IPv6 alone.
struct NicV6 {
  std::string name;
  IpAddress address;  ///< not one of the link alone (fe80::)
};

/// The same for interfaces without an IPv4 address. One may be there several times.
std::vector<NicV6> usable_v6_nics();

/// How this host is reached by all others of the job, and what it has beside that. Where the job's
/// hosts are on several networks, those that only some of them are on must not be mistaken for the
/// one that all are on.
struct NicRoles {
  /// UCX is confined to these; empty: to none, everything is the shared network.
  std::vector<std::string> shared;
  std::vector<Nic> rails;
  /// At which the other hosts reach this one: IPv4 if it has an interface with that, else IPv6.
  /// Without a network it is that of the loopback: then all ranks are here.
  IpAddress address;
  /// Other addresses from which connections of this host may come.
  HostAddresses sources;
};

/// The shared network is the one that leads to MASTER_ADDR, which every rank must reach, else that
/// of the default route. If that is unknown, nothing is set apart, and UCX is confined to what is
/// not loopback: each interface takes UCX two milliseconds when it starts. UCX is not confined if
/// the user has set UCX_NET_DEVICES, or if the host has RDMA adapters, whose networks TCP does not
/// show. If no interface is up, the one that leads to MASTER_ADDR has the time of `silence_limit`.
NicRoles nic_roles();

/// The first network of `mine` that `theirs` is on as well, with another address: indices into
/// both. The same address on two hosts means two networks of the same numbers.
std::optional<std::pair<size_t, size_t>> common_network(const std::vector<Nic>& mine,
                                                        const std::vector<Nic>& theirs);

}  // namespace q7x2
