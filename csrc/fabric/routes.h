// Routes: which resources the traffic between two ranks takes, and what a message costs there.
//
// A *resource* has a rate that all traffic through it shares. A host's NIC is two resources
// (egress, ingress), as is the cable between a rack and the others. A private link is
// one resource for each direction. Ranks of one host talk through its memory, and
// through its interconnect if they are bound to different NUMA nodes. So a shared uplink slows all
// who cross it, in the planner as in reality.
//
//   rank 0 --egress(h0)--> [rack 0] --up(0)--> (core) --down(1)--> [rack 1] --ingress(h5)--> rank 9
//
// A pair of hosts that was measured has the latency that was measured, and a resource of its own if
// it alone reaches less than the resources of its route promise. Another one is the window of its
// connection, if that does not fill the route: it lets the window pass at once, and then as much in
// each round trip.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fabric/fabric.h"

namespace q7x2 {

/// Its memory grows with hosts, racks, links and measured pairs, and not with pairs of hosts.
class Routes {
 public:
  enum class Kind { kEgress, kIngress, kUp, kDown, kLink, kMemory, kInterconnect, kPair, kWindow };

  /// Whether it is one of the network's, not of a host's own memory.
  static bool is_network(Kind kind) { return kind != Kind::kMemory && kind != Kind::kInterconnect; }

  struct Resource {
    Kind kind;
    std::string name;  ///< "egress h0", "up rack 1", "link h0 -> h2", "memory h3"
    double rate;       ///< bytes per second; infinite where unknown
    double burst;      ///< bytes that it lets pass at once after a pause
  };

  /// The resources of one route, as indices, in the order in which traffic takes them.
  class Path {
   public:
    static constexpr size_t kMost = 6;

    void push_back(int resource) { resources_[size_++] = resource; }
    const int* begin() const { return resources_.data(); }
    const int* end() const { return begin() + size_; }
    size_t size() const { return size_; }
    int operator[](size_t i) const { return resources_[i]; }
    operator std::vector<int>() const { return {begin(), end()}; }

   private:
    std::array<int, kMost> resources_{};
    size_t size_ = 0;
  };
  struct Route {
    Path resources;
    Fabric::Cost cost;
    double rate;  ///< the least of its resources', for messages that fit into a window
  };

  /// A host's own resources.
  struct Ports {
    int rack;
    int egress, ingress, memory;
    int interconnect;  ///< kNone: no two ranks are bound to different NUMA nodes
  };
  /// The cable between a rack and the others.
  struct Cable {
    int up, down;
    double alpha;  ///< see Fabric::Rack
  };
  static constexpr int kNone = -1;

  explicit Routes(const Fabric& fabric);

  const std::vector<Resource>& resources() const { return resources_; }
  /// Between two ranks. Allocates nothing.
  Route between(int source, int destination) const;
  /// Between two hosts; inside one, between ranks of one NUMA node.
  Route between_hosts(int from, int to) const;

  const Ports& ports(int host) const { return hosts_[static_cast<size_t>(host)]; }
  const Cable& cable(int rack) const { return racks_[static_cast<size_t>(rack)]; }
  /// Pairs of hosts whose traffic does not take their ports and cables alone.
  const std::vector<std::pair<int, int>>& exceptions() const { return exceptions_; }
  /// Equal exactly for pairs of ranks that have one route.
  uint64_t key(int source, int destination) const;
  /// Seconds: the largest alpha of the routes between any two of `ranks`; 0 for fewer than two. In
  /// time linear in the ranks and in the pairs and links of the Fabric.
  double largest_alpha(std::span<const int> ranks) const;
  /// The alpha of messages between hosts of two racks, if nothing else is known of the two.
  double alpha_between(int from_rack, int to_rack) const;
  /// The largest of them between hosts of those racks, which are marked; inside a rack if it is
  /// one.
  double ordinary_alpha(const std::vector<bool>& racks) const;

 private:
  /// What is known of one pair of hosts, in one direction.
  struct Pair {
    int from, to;
    double alpha;
    int resource;  // kNone: only those of any pair
    bool is_link;  // whether that is its only resource
    int window = kNone;
  };

  uint64_t hosts_key(int from, int to) const {
    return static_cast<uint64_t>(from) * hosts_.size() + static_cast<uint64_t>(to);
  }
  bool crosses_numa(int source, int destination) const;
  int add(Kind kind, std::string name, double rate);
  int add_window(const Fabric& fabric, const Fabric::Pair& pair, double alpha);
  void add_links(const Fabric& fabric);
  void add_pairs(const Fabric& fabric);
  const Pair* find_pair(int from, int to) const;
  Route shared(int from, int to) const;
  Route finish(Path path, Fabric::Cost cost) const;

  std::vector<int> host_of_;  // by rank
  std::vector<int> numa_of_;  // by rank; empty: not known
  Fabric::Cost memory_, crossing_, network_;
  double burst_;
  std::vector<Resource> resources_;
  std::vector<Ports> hosts_;
  std::vector<Cable> racks_;
  std::vector<std::pair<int, int>> exceptions_;
  std::unordered_map<uint64_t, Pair> pairs_;  // by hosts_key
};

}  // namespace q7x2
