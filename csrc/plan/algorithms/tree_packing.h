// Packing: spanning trees over hosts, packed so that all wires are busy until the end.
//
// Every resource between hosts (a NIC, a cable of a rack, a private link) has a price, which grows
// by a factor with each tree that uses it. Trees take the cheapest edges, and later give them up
// for cheaper ones. The prices are products of numbers that all ranks know, computed without a
// mathematical library, so all ranks pack the same trees.
#pragma once

#include <cstddef>
#include <vector>

#include "fabric/fabric.h"
#include "plan/ir/tree.h"

namespace q7x2 {

/// In which directions data moves along a tree's edges.
struct Directions {
  bool up;
  bool down;
};

/// Trees over hosts, and their loads on the resources between hosts. A tree loads a resource once
/// for each of its edges that uses it.
class Packing {
 public:
  /// `order`: the order in which hosts are looked at, which decides between equally good edges.
  Packing(const Fabric& fabric, Directions directions, std::vector<int> order);

  /// Packs `shares` trees. `root`: the host at the root of all trees; -1: each tree has the root
  /// with the least depth.
  std::vector<Tree> pack(size_t shares, int root_host);

  /// For the last packing: the time for one share's data through the busiest resource, with all
  /// trees.
  double last_finish() const { return finish_; }
  /// The same for the longest path of the trees: its latency, in seconds.
  double last_latency() const { return latency_; }

 private:
  static constexpr int kRounds = 4;
  /// The price of a full resource is exp(8) times that of an empty one.
  static constexpr double kSteepness = 8;
  /// An edge must cost less than this share of another one to be preferred.
  static constexpr double kCheaper = 1 - 1e-6;
  /// A latency must be less than this share of another one to be worth a longer path.
  static constexpr double kMuchNearer = 0.5;

  template <typename Visit>
  void for_each_resource(size_t parent, size_t child, Visit visit) const;

  /// A tree of places in the order, as one of hosts.
  Tree of_hosts(const Tree& places) const;

  double finish() const;

  void add_load(const Tree& tree, double load);

  /// The price of one more tree on the resource, if everything should be done within `scale`.
  void set_price(size_t r, double scale);

  double price(size_t parent, size_t child) const;

  /// Grows a tree by the cheapest edge at a time (Prim), and adds its load. Prices only rise, so an
  /// earlier price of a host is a lower bound, which is computed again when it is the lowest.
  Tree grow(size_t root, double scale);

  /// Each host of a tree in turn moves to the parent to which its edge is cheapest. Returns whether
  /// some did. Each move lowers the sum of exp(load), so they end.
  bool move_hosts(Tree& tree, double scale);

  /// Each host of a tree moves to a parent that is much nearer, if no wire is then busier than the
  /// busiest one.
  void shorten(Tree& tree);

  double latency(size_t parent, size_t child) const;

  double latency_of(const Tree& tree) const;

  /// Whether `host` is `top` or below it.
  static bool is_below(const Tree& tree, size_t host, size_t top);

  void load_edge(size_t parent, size_t child, double load, double scale);

  /// Moves the root to where the tree has the least depth.
  static void lower(Tree& tree);

  size_t num_hosts_;
  Directions directions_;
  std::vector<int> order_;
  std::vector<double> rates_;             // by resource
  std::vector<std::vector<int>> routes_;  // by host and host
  std::vector<double> latencies_;         // by host and host
  std::vector<double> loads_;
  std::vector<double> prices_;
  double finish_ = 0;
  double latency_ = 0;
};

}  // namespace q7x2
