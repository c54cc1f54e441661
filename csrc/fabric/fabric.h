// Fabric: what is known of the hosts of one group and of the network between them.
//
// Traffic between two ranks takes a *route*: a few *resources*, each with a rate that all traffic
// through it shares. A host's NIC is two resources (egress, ingress), as is the cable between a
// rack and the others; a private link beside the switched network is one for each direction; ranks
// of one host talk through its memory. So a shared uplink slows all who cross it, in the planner as
// in reality.
//
//   rank 0 --egress(h0)--> [rack 0] --up(0)--> (core) --down(1)--> [rack 1] --ingress(h5)--> rank 9
//
// All ranks of a group hold an equal Fabric: the planner's choices follow from it without talking.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace q7x2 {

struct Fabric {
  /// A machine whose processes share memory.
  struct Host {
    std::string name;
    std::string key;     ///< see host_key(); empty in a Fabric made by hand
    int cores = 1;       ///< hardware threads the ranks may use
    int rack = 0;        ///< index into `racks`
    double egress = 0;   ///< bytes a second out of the NIC it shares with the switched network
    double ingress = 0;  ///< bytes a second into it
  };
  /// Hosts behind one cable to the rest. A Fabric has at least one rack; the only one has no cable.
  struct Rack {
    std::string name;
    double up = 0;    ///< bytes a second out of the rack, of all its hosts together; 0: no limit
    double down = 0;  ///< bytes a second into it
  };
  /// A wire between two hosts beside the switched network. Traffic between them takes it.
  struct Link {
    int a = 0;  ///< hosts
    int b = 0;
    double rate = 0;   ///< bytes a second, each way
    double alpha = 0;  ///< seconds from one end to the other
  };

  /// What one message costs beside its bytes.
  struct Cost {
    double alpha = 0;     ///< seconds from one rank to another, whatever the size
    double overhead = 0;  ///< seconds of CPU time for each message, at each end
  };

  std::vector<int> host_of;  ///< by rank
  std::vector<Host> hosts;
  std::vector<Rack> racks;
  std::vector<Link> links;

  Cost memory{1e-6, 0.3e-6};  ///< between ranks of one host
  double copy_rate = 8e9;     ///< bytes a second that one core copies
  double reduce_rate = 8e9;   ///< bytes a second that one core folds into a sum
  Cost network{30e-6, 3e-6};  ///< between hosts

  int world_size() const { return static_cast<int>(host_of.size()); }
  bool same_host(int a, int b) const {
    return host_of[static_cast<size_t>(a)] == host_of[static_cast<size_t>(b)];
  }
  bool one_host() const { return hosts.size() <= 1; }
  int rack_of(int rank) const {
    return hosts[static_cast<size_t>(host_of[static_cast<size_t>(rank)])].rack;
  }

  /// Ranks in an order in which neighbours are near: by rack, host and rank.
  std::vector<int> near_order() const;
  /// The Fabric of some of the ranks, renumbered in the given order; hosts and racks that lose all
  /// their ranks go. Throws Error(kInvalidArgument) where a rank is out of range or named twice.
  Fabric subset(const std::vector<int>& ranks) const;
  /// Throws Error(kInvalidArgument) unless every index is in range, every host has a rank, and
  /// every rate and cost is finite and not negative.
  void validate() const;

  /// All ranks on one host.
  static Fabric one_host_of(int ranks, int cores);
  /// One switch; `rate` bytes a second into and out of each host.
  static Fabric uniform(int hosts, int ranks_per_host, double rate);
};

/// The resources of a Fabric, and the route between each two ranks.
class Routes {
 public:
  enum class Kind { kEgress, kIngress, kUp, kDown, kLink, kMemory };

  struct Resource {
    Kind kind;
    std::string name;  ///< "egress h0", "up rack 1", "link h0 -> h2", "memory h3"
    double rate;       ///< bytes a second; infinite where unknown
  };
  struct Route {
    std::vector<int> resources;
    Fabric::Cost cost;
    double rate;  ///< the least of its resources'
  };

  explicit Routes(const Fabric& fabric);

  const std::vector<Resource>& resources() const { return resources_; }
  /// Between two ranks. The reference stays valid as long as this object.
  const Route& between(int source, int destination) const;

 private:
  int add(Kind kind, std::string name, double rate);

  std::vector<int> host_of_;
  std::vector<Resource> resources_;
  std::map<std::pair<int, int>, Route> by_hosts_;
};

}  // namespace q7x2
