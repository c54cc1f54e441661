// Blink: the data is split over several spanning trees, which are packed so that every link of the
// network is busy until the end.
//
//   host 0 has a private link of 100 to each         tree 0, weight 9      trees 1, 2, 3, weight 1
//   other host; all share a switch of 20:
//                                                        0                    0           0
//         1 ---- 0 ---- 2                              / | \                /   \        ...
//                |                                    1  2  3              1     2
//                3                                                         |
//                                                                          3
//
//   collective           steps                    bytes through a resource, as a share of B
//   all_reduce           2 x depth of the trees   its trees' weights, at most its rate / throughput
//   broadcast, reduce    depth of the trees       the same, one way
//
// The graph has an edge for each pair of hosts, with all resources on the route between them: NICs,
// cables of racks, private links. The fastest way to spread data through it is the best packing of
// spanning trees, a linear programme. Multiplicative weights solve it: every resource has a price
// that grows by a factor with each tree that uses it, and the next tree is the cheapest one at
// these prices. Here the data has W equal shares. Each share gets a tree. Then each share in turn
// gives its tree up and takes the cheapest one, in which each host
// then moves to its cheapest parent, and the shares with the same tree become a part of
// that weight. The smallest W that comes close to the best is used, for few trees and long
// messages.
//
// It wins if the network is not a plain switch: private links, racks, NICs of unequal speed. In
// each tree one rank of a host has the other ranks of this host as its children; this rank changes
// from tree to tree. Prices are products of numbers that all ranks know, computed without a
// mathematical library, so all ranks construct the same trees.
// Wang et al., "Blink: fast and generic collectives for distributed ML", MLSys 2020; Garg and
// Könemann, "Faster and simpler algorithms for multicommodity flow and other fractional packing
// problems", 2007.
#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>

#include "fabric/fabric.h"
#include "plan/algorithms/generators.h"
#include "plan/cost/host_distances.h"
#include "plan/cost/network.h"
#include "plan/ir/tree.h"

namespace q7x2 {

namespace {

/// In which directions data moves along a tree's edges.
struct Directions {
  bool up;
  bool down;
};

/// Approximates exp(x) by multiplications alone.
double exponential(double x) {
  double power = 1 + x / 64;
  for (int squaring = 0; squaring < 6; ++squaring) power *= power;
  return power;
}

/// Trees over hosts, and their loads on the resources between hosts. A tree loads a resource once
/// for each of its edges that uses it.
class Packing {
 public:
  /// `order`: the order in which hosts are looked at, which decides between equally good edges.
  Packing(const Fabric& fabric, Directions directions, std::vector<int> order)
      : num_hosts_(fabric.hosts.size()), directions_(directions), order_(std::move(order)) {
    const Routes routes(fabric);
    rates_ = known_rates(routes);
    std::vector<int> rank_on(num_hosts_);
    for (int rank = 0; rank < fabric.world_size(); ++rank) {
      rank_on[static_cast<size_t>(fabric.host_of[static_cast<size_t>(rank)])] = rank;
    }
    for (const int from : order_) {
      for (const int to : order_) {
        const Routes::Route route =
            routes.between(rank_on[static_cast<size_t>(from)], rank_on[static_cast<size_t>(to)]);
        routes_.push_back(route.resources);
        latencies_.push_back(route.cost.alpha + 2 * route.cost.overhead);
      }
    }
    loads_.resize(rates_.size());
    prices_.resize(rates_.size());
  }

  /// Packs `shares` trees. `root`: the host at the root of all trees; -1: each tree has the root
  /// with the least depth.
  std::vector<Tree> pack(size_t shares, int root_host) {
    const auto place = std::ranges::find(order_, root_host);
    const int root = root_host < 0 ? -1 : static_cast<int>(place - order_.begin());
    std::ranges::fill(loads_, 0.0);
    std::vector<Tree> trees;
    for (size_t i = 0; i < shares; ++i) {
      const double so_far = finish();
      const double scale = i == 0 ? 1 / *std::ranges::max_element(rates_)
                                  : so_far * static_cast<double>(i + 1) / static_cast<double>(i);
      trees.push_back(grow(root < 0 ? i % num_hosts_ : static_cast<size_t>(root), scale));
    }
    std::vector<Tree> best = trees;
    double best_finish = finish();
    for (int round = 0; round < kRounds; ++round) {
      for (size_t i = 0; i < shares; ++i) {
        const double scale = finish();
        add_load(trees[i], -1);
        trees[i] = grow(root < 0 ? i % num_hosts_ : static_cast<size_t>(root), scale);
        while (move_hosts(trees[i], scale)) {
        }
      }
      if (finish() >= best_finish) break;
      best = trees;
      best_finish = finish();
    }
    finish_ = best_finish;
    std::ranges::fill(loads_, 0.0);
    for (const Tree& tree : best) add_load(tree, 1);
    latency_ = 0;
    for (Tree& tree : best) {
      shorten(tree);
      if (root < 0) lower(tree);
      latency_ = std::max(latency_, latency_of(tree));
    }
    for (Tree& tree : best) tree = of_hosts(tree);
    return best;
  }

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
  void for_each_resource(size_t parent, size_t child, Visit visit) const {
    if (directions_.down) {
      for (const int r : routes_[parent * num_hosts_ + child]) visit(static_cast<size_t>(r));
    }
    if (directions_.up) {
      for (const int r : routes_[child * num_hosts_ + parent]) visit(static_cast<size_t>(r));
    }
  }

  /// A tree of places in the order, as one of hosts.
  Tree of_hosts(const Tree& places) const {
    Tree tree(places.size(), -1);
    for (size_t place = 0; place < places.size(); ++place) {
      if (places[place] < 0) continue;
      tree[static_cast<size_t>(order_[place])] = order_[static_cast<size_t>(places[place])];
    }
    return tree;
  }

  double finish() const {
    double latest = 0;
    for (size_t r = 0; r < rates_.size(); ++r) latest = std::max(latest, loads_[r] / rates_[r]);
    return latest;
  }

  void add_load(const Tree& tree, double load) {
    for (size_t child = 0; child < num_hosts_; ++child) {
      if (tree[child] < 0) continue;
      for_each_resource(static_cast<size_t>(tree[child]), child,
                        [&](size_t r) { loads_[r] += load; });
    }
  }

  /// The price of one more tree on the resource, if everything should be done within `scale`.
  void set_price(size_t r, double scale) {
    const double unit = kSteepness / (rates_[r] * scale);
    prices_[r] = exponential((loads_[r] + 1) * unit) - exponential(loads_[r] * unit);
  }

  double price(size_t parent, size_t child) const {
    double sum = 0;
    for_each_resource(parent, child, [&](size_t r) { sum += prices_[r]; });
    return sum;
  }

  /// Grows a tree by the cheapest edge at a time (Prim), and adds its load. Prices only rise, so an
  /// earlier price of a host is a lower bound, which is computed again when it is the lowest.
  Tree grow(size_t root, double scale) {
    constexpr double kInside = std::numeric_limits<double>::infinity();
    for (size_t r = 0; r < rates_.size(); ++r) set_price(r, scale);
    Tree tree(num_hosts_, -1);
    std::vector<int> depth(num_hosts_);
    std::vector<size_t> inside{root};
    std::vector<double> bound(num_hosts_, 0.0);
    bound[root] = kInside;
    while (inside.size() < num_hosts_) {
      const auto least = std::ranges::min_element(bound);
      const auto child = static_cast<size_t>(least - bound.begin());
      using Offer = std::tuple<double, int, size_t>;
      Offer best{kInside, 0, 0};
      for (const size_t parent : inside) {
        best = std::min(best, Offer{price(parent, child), depth[parent], parent});
      }
      const auto& [cost, above, parent] = best;
      *least = cost;
      if (*std::ranges::min_element(bound) < cost) continue;
      tree[child] = static_cast<int>(parent);
      depth[child] = above + 1;
      inside.push_back(child);
      *least = kInside;
      load_edge(parent, child, 1, scale);
      for (size_t other = 0; other < num_hosts_; ++other) {
        if (bound[other] != kInside) bound[other] = std::min(bound[other], price(child, other));
      }
    }
    return tree;
  }

  /// Each host of a tree in turn moves to the parent to which its edge is cheapest. Returns whether
  /// some did. Each move lowers the sum of exp(load), so they end.
  bool move_hosts(Tree& tree, double scale) {
    bool moved = false;
    for (size_t child = 0; child < num_hosts_; ++child) {
      if (tree[child] < 0) continue;
      const auto before = static_cast<size_t>(tree[child]);
      load_edge(before, child, -1, scale);
      size_t best = before;
      double least = price(before, child) * kCheaper;
      for (size_t parent = 0; parent < num_hosts_; ++parent) {
        if (parent == before || is_below(tree, parent, child)) continue;
        const double cost = price(parent, child);
        if (cost >= least) continue;
        least = cost;
        best = parent;
      }
      load_edge(best, child, 1, scale);
      tree[child] = static_cast<int>(best);
      moved = moved || best != before;
    }
    return moved;
  }

  /// Each host of a tree moves to a parent that is much nearer, if no wire is then busier than the
  /// busiest one.
  void shorten(Tree& tree) {
    for (size_t child = 0; child < num_hosts_; ++child) {
      if (tree[child] < 0) continue;
      const auto before = static_cast<size_t>(tree[child]);
      size_t best = before;
      double least = latency(before, child) * kMuchNearer;
      load_edge(before, child, -1, finish_);
      for (size_t parent = 0; parent < num_hosts_; ++parent) {
        if (latency(parent, child) >= least || is_below(tree, parent, child)) continue;
        double latest = 0;
        for_each_resource(parent, child, [&](size_t r) {
          latest = std::max(latest, (loads_[r] + 1) / rates_[r]);
        });
        if (latest > finish_ / kCheaper) continue;
        least = latency(parent, child);
        best = parent;
      }
      load_edge(best, child, 1, finish_);
      tree[child] = static_cast<int>(best);
    }
  }

  double latency(size_t parent, size_t child) const {
    return std::max(latencies_[parent * num_hosts_ + child],
                    latencies_[child * num_hosts_ + parent]);
  }

  double latency_of(const Tree& tree) const {
    double longest = 0;
    for (size_t host = 0; host < num_hosts_; ++host) {
      double sum = 0;
      for (size_t at = host; tree[at] >= 0; at = static_cast<size_t>(tree[at])) {
        sum += latency(static_cast<size_t>(tree[at]), at);
      }
      longest = std::max(longest, sum);
    }
    return longest;
  }

  /// Whether `host` is `top` or below it.
  static bool is_below(const Tree& tree, size_t host, size_t top) {
    for (int at = static_cast<int>(host); at >= 0; at = tree[static_cast<size_t>(at)]) {
      if (at == static_cast<int>(top)) return true;
    }
    return false;
  }

  void load_edge(size_t parent, size_t child, double load, double scale) {
    for_each_resource(parent, child, [&](size_t r) {
      loads_[r] += load;
      set_price(r, scale);
    });
  }

  /// Moves the root to where the tree has the least depth.
  static void lower(Tree& tree) {
    std::vector<std::vector<int>> neighbours(tree.size());
    for (size_t child = 0; child < tree.size(); ++child) {
      if (tree[child] < 0) continue;
      neighbours[child].push_back(tree[child]);
      neighbours[static_cast<size_t>(tree[child])].push_back(static_cast<int>(child));
    }
    size_t least_depth = tree.size();
    for (int root = 0; root < static_cast<int>(neighbours.size()); ++root) {
      Tree rooted(tree.size(), -1);
      std::vector<int> level{root};
      size_t depth = 0;
      for (std::vector<int> next; !level.empty(); level = std::move(next), ++depth) {
        next.clear();
        for (const int parent : level) {
          for (const int child : neighbours[static_cast<size_t>(parent)]) {
            if (rooted[static_cast<size_t>(parent)] == child) continue;
            rooted[static_cast<size_t>(child)] = parent;
            next.push_back(child);
          }
        }
      }
      if (depth >= least_depth) continue;
      least_depth = depth;
      tree = std::move(rooted);
    }
  }

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

struct WeightedTrees {
  std::vector<Tree> trees;  ///< over ranks
  std::vector<uint32_t> weights;
};

/// In each tree a host is represented by one of its ranks, in turn, and its other ranks are the
/// children of that one. The root of a rooted collective represents its host in all trees.
Tree tree_of_ranks(const Tree& hosts, const Fabric& fabric, size_t turn, int root) {
  std::vector<std::vector<int>> ranks_on(fabric.hosts.size());
  for (int rank = 0; rank < fabric.world_size(); ++rank) {
    ranks_on[static_cast<size_t>(fabric.host_of[static_cast<size_t>(rank)])].push_back(rank);
  }
  std::vector<int> speaker;
  for (const std::vector<int>& ranks : ranks_on) {
    const bool has_root = std::ranges::find(ranks, root) != ranks.end();
    speaker.push_back(has_root ? root : ranks[turn % ranks.size()]);
  }
  return tree_of_ranks(hosts, speaker, fabric);
}

constexpr int kMaxHosts = 64;
/// More hosts than this get fewer shares, because the time for a packing grows with the square of
/// the number of hosts.
constexpr size_t kManyHosts = 16;
constexpr size_t kShares[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32};
constexpr size_t kSharesForMany = 8;
/// Fewer shares are preferred unless more of them are faster by at least this.
constexpr double kWorthIt = 0.02;

WeightedTrees weigh(const std::vector<Tree>& host_trees, const Fabric& fabric, int root) {
  std::map<Tree, uint32_t> weights;
  for (const Tree& tree : host_trees) ++weights[tree];
  WeightedTrees result;
  for (const auto& [tree, weight] : weights) {
    result.trees.push_back(tree_of_ranks(tree, fabric, result.trees.size(), root));
    result.weights.push_back(weight);
  }
  return result;
}

/// Number of scratch blocks that the busiest rank needs for what its children send, in slices. A
/// block is as long as the heaviest part.
double scratch(const WeightedTrees& packed) {
  std::vector<uint32_t> children(packed.trees.front().size());
  for (const Tree& tree : packed.trees) {
    for (const int parent : tree) {
      if (parent >= 0) ++children[static_cast<size_t>(parent)];
    }
  }
  const auto total = std::accumulate(packed.weights.begin(), packed.weights.end(), 0.0);
  return *std::ranges::max_element(children) * *std::ranges::max_element(packed.weights) / total;
}

/// For few hosts: the given order, the hosts that are near all others first, and both reversed.
std::vector<std::vector<int>> orders(const Fabric& fabric) {
  std::vector<int> hosts(fabric.hosts.size());
  std::iota(hosts.begin(), hosts.end(), 0);
  std::vector<std::vector<int>> all{hosts};
  if (hosts.size() > kManyHosts) return all;
  all.emplace_back(hosts.rbegin(), hosts.rend());
  const HostDistances distances(fabric);
  std::ranges::stable_sort(hosts, {}, [&](int host) { return distances.to_all(host); });
  if (hosts == all[0]) return all;
  all.push_back(hosts);
  all.emplace_back(hosts.rbegin(), hosts.rend());
  return all;
}

WeightedTrees pack_trees(const ScheduleRequest& request) {
  const Fabric& fabric = *request.fabric;
  std::vector<Packing> packings;
  for (std::vector<int>& order : orders(fabric)) {
    packings.emplace_back(fabric,
                          Directions{.up = request.collective != Collective::kBroadcast,
                                     .down = request.collective != Collective::kReduce},
                          std::move(order));
  }
  const int root = request.root < 0 ? -1 : fabric.host_of[static_cast<size_t>(request.root)];
  WeightedTrees best;
  double best_time = std::numeric_limits<double>::infinity();
  for (const size_t shares : kShares) {
    if (fabric.hosts.size() > kManyHosts && shares > kSharesForMany) break;
    const double least_worth_it = best_time * (1 - kWorthIt);
    std::pair<double, double> first{least_worth_it, 0};  // time and latency
    for (Packing& packing : packings) {
      const std::vector<Tree> trees = packing.pack(shares, root);
      const double time = packing.last_finish() / static_cast<double>(shares);
      const std::pair found{time, packing.last_latency()};
      if (time >= least_worth_it || found >= first) continue;
      WeightedTrees packed = weigh(trees, fabric, request.root);
      if (scratch(packed) > kMaxScratchSlices * request.world_size) continue;
      best = std::move(packed);
      best_time = time;
      first = found;
    }
  }
  return best;
}

Schedule generate(const ScheduleRequest& request) {
  WeightedTrees packed = pack_trees(request);
  return forest_schedule(request, "blink", branches_of(std::move(packed.trees)), packed.weights);
}

/// Whether there is one switch with equal hosts, and all pairs of hosts are equally good.
bool is_plain(const Fabric& fabric) {
  if (fabric.racks.size() > 1) return false;
  if (!HostDistances::may_differ(fabric)) return true;
  const HostDistances distances(fabric);
  return !distances.pairs_differ() && !distances.nics_differ();
}

/// Has no parameter. Offers nothing on a plain network.
std::vector<int> parameters(const ScheduleRequest& request) {
  if (request.fabric == nullptr) return {};
  const Fabric& fabric = *request.fabric;
  if (fabric.one_host() || fabric.hosts.size() > kMaxHosts) return {};
  return is_plain(fabric) ? std::vector<int>{} : std::vector<int>{0};
}

Generator entry(Collective collective) {
  return {
      .name = "blink", .collective = collective, .generate = generate, .parameters = parameters};
}

}  // namespace

std::vector<Generator> blink_generators() {
  return {entry(Collective::kAllReduce), entry(Collective::kBroadcast), entry(Collective::kReduce)};
}

}  // namespace q7x2
