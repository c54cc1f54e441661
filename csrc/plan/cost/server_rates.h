// How fast the servers of a Fabric are.
#pragma once

#include <vector>

namespace q7x2 {

struct Fabric;

/// A server as a member, with what it can send and receive at once, in bytes a second.
struct RatedServer {
  int member;
  double rate;
};

/// The servers, the fastest first, equally fast ones by their numbers. Those of one host share its
/// NIC.
std::vector<RatedServer> servers_by_rate(const Fabric& fabric);

}  // namespace q7x2
