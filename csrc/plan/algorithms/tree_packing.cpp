#include "plan/algorithms/tree_packing.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "plan/cost/network.h"

namespace q7x2 {

namespace {

/// Approximates exp(x) by multiplications alone.
double exponential(double x) {
  double power = 1 + x / 64;
  for (int squaring = 0; squaring < 6; ++squaring) power *= power;
  return power;
}

}  // namespace

Packing::Packing(const Fabric& fabric, Directions directions, std::vector<int> order)
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

std::vector<Tree> Packing::pack(size_t shares, int root_host) {
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

template <typename Visit>
void Packing::for_each_resource(size_t parent, size_t child, Visit visit) const {
  if (directions_.down) {
    for (const int r : routes_[parent * num_hosts_ + child]) visit(static_cast<size_t>(r));
  }
  if (directions_.up) {
    for (const int r : routes_[child * num_hosts_ + parent]) visit(static_cast<size_t>(r));
  }
}

Tree Packing::of_hosts(const Tree& places) const {
  Tree tree(places.size(), -1);
  for (size_t place = 0; place < places.size(); ++place) {
    if (places[place] < 0) continue;
    tree[static_cast<size_t>(order_[place])] = order_[static_cast<size_t>(places[place])];
  }
  return tree;
}

double Packing::finish() const {
  double latest = 0;
  for (size_t r = 0; r < rates_.size(); ++r) latest = std::max(latest, loads_[r] / rates_[r]);
  return latest;
}

void Packing::add_load(const Tree& tree, double load) {
  for (size_t child = 0; child < num_hosts_; ++child) {
    if (tree[child] < 0) continue;
    for_each_resource(static_cast<size_t>(tree[child]), child,
                      [&](size_t r) { loads_[r] += load; });
  }
}

void Packing::set_price(size_t r, double scale) {
  const double unit = kSteepness / (rates_[r] * scale);
  prices_[r] = exponential((loads_[r] + 1) * unit) - exponential(loads_[r] * unit);
}

double Packing::price(size_t parent, size_t child) const {
  double sum = 0;
  for_each_resource(parent, child, [&](size_t r) { sum += prices_[r]; });
  return sum;
}

Tree Packing::grow(size_t root, double scale) {
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

bool Packing::move_hosts(Tree& tree, double scale) {
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

void Packing::shorten(Tree& tree) {
  for (size_t child = 0; child < num_hosts_; ++child) {
    if (tree[child] < 0) continue;
    const auto before = static_cast<size_t>(tree[child]);
    size_t best = before;
    double least = latency(before, child) * kMuchNearer;
    load_edge(before, child, -1, finish_);
    for (size_t parent = 0; parent < num_hosts_; ++parent) {
      if (latency(parent, child) >= least || is_below(tree, parent, child)) continue;
      double latest = 0;
      for_each_resource(parent, child,
                        [&](size_t r) { latest = std::max(latest, (loads_[r] + 1) / rates_[r]); });
      if (latest > finish_ / kCheaper) continue;
      least = latency(parent, child);
      best = parent;
    }
    load_edge(best, child, 1, finish_);
    tree[child] = static_cast<int>(best);
  }
}

double Packing::latency(size_t parent, size_t child) const {
  return std::max(latencies_[parent * num_hosts_ + child], latencies_[child * num_hosts_ + parent]);
}

double Packing::latency_of(const Tree& tree) const {
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

bool Packing::is_below(const Tree& tree, size_t host, size_t top) {
  for (int at = static_cast<int>(host); at >= 0; at = tree[static_cast<size_t>(at)]) {
    if (at == static_cast<int>(top)) return true;
  }
  return false;
}

void Packing::load_edge(size_t parent, size_t child, double load, double scale) {
  for_each_resource(parent, child, [&](size_t r) {
    loads_[r] += load;
    set_price(r, scale);
  });
}

void Packing::lower(Tree& tree) {
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
}  // namespace q7x2
