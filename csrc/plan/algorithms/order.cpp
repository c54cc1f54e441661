#include "plan/algorithms/order.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "fabric/fabric.h"
#include "plan/algorithms/host_tour.h"
#include "plan/cost/host_distances.h"

namespace q7x2 {
namespace {

/// Maximum number of swaps of two hosts that are evaluated for one order: a few milliseconds.
constexpr size_t kMostWeighed = 400'000;
/// A length must be less by at least this factor to count as shorter.
constexpr double kShorter = 1 - 1e-9;

/// The time to align racks grows with the cube of the number of hosts.
constexpr size_t kMostAligned = 128;

/// The order of the ranks without tours.
std::vector<int> plain_order(const ScheduleRequest& request) {
  if (request.order != nullptr) return *request.order;
  if (request.fabric != nullptr) return request.fabric->near_order();
  std::vector<int> ranks(static_cast<size_t>(request.world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

bool may_move(const ScheduleRequest& request) {
  return request.order == nullptr && request.fabric != nullptr &&
         request.fabric->hosts.size() > 2 && HostDistances::may_differ(*request.fabric);
}

/// Hosts with their ranks, in the order of `ranks`.
class HostRanks {
 public:
  HostRanks(const Fabric& fabric, const std::vector<int>& ranks) : on_host_(fabric.hosts.size()) {
    for (const int rank : ranks) {
      const int host = fabric.host_of[static_cast<size_t>(rank)];
      if (of(host).empty()) hosts_.push_back(host);
      on_host_[static_cast<size_t>(host)].push_back(rank);
    }
  }

  const std::vector<int>& hosts() const { return hosts_; }
  const std::vector<int>& of(int host) const { return on_host_[static_cast<size_t>(host)]; }
  Order order_of(const std::vector<int>& hosts) const {
    std::vector<int> ranks;
    for (const int host : hosts) ranks.insert(ranks.end(), of(host).begin(), of(host).end());
    return Order(std::move(ranks));
  }

 private:
  std::vector<std::vector<int>> on_host_;
  std::vector<int> hosts_;
};

/// `ranks`, in which each host's ranks are consecutive, with the hosts in the order of a tour.
Order toured(const ScheduleRequest& request, std::vector<int> ranks, Tour kind) {
  if (!may_move(request)) return Order(std::move(ranks));
  const HostDistances distances(*request.fabric);
  if (!distances.pairs_differ()) return Order(std::move(ranks));
  const HostRanks its(*request.fabric, ranks);
  return its.order_of(short_tour(distances, its.hosts(), kind));
}

/// Takes one host of each rack that has any left, the nearest to each other: it begins with each
/// host of the first rack, and adds the host of each next rack that is nearest to those it has.
std::vector<int> take_near_team(const HostDistances& distances,
                                std::vector<std::vector<int>>& left) {
  std::vector<int> best;
  double shortest = std::numeric_limits<double>::infinity();
  for (const int first : left.front()) {
    std::vector<int> team{first};
    double sum = 0;
    for (size_t rack = 1; rack < left.size() && sum < shortest; ++rack) {
      int nearest = -1;
      double least = std::numeric_limits<double>::infinity();
      for (const int host : left[rack]) {
        double distance = 0;
        for (const int member : team) distance += distances.between(member, host);
        if (distance >= least) continue;
        least = distance;
        nearest = host;
      }
      if (nearest < 0) continue;
      sum += least;
      team.push_back(nearest);
    }
    if (sum >= shortest) continue;
    shortest = sum;
    best = std::move(team);
  }
  for (std::vector<int>& hosts : left) {
    std::erase_if(hosts, [&](int host) { return std::ranges::find(best, host) != best.end(); });
  }
  std::erase_if(left, [](const std::vector<int>& hosts) { return hosts.empty(); });
  return best;
}

/// Hosts at the positions of a row, and the distances between those that exchange messages.
class Places {
 public:
  Places(const Fabric& fabric, const HostDistances& distances, const std::vector<int>& ranks,
         std::span<const Talk> talks)
      : distances_(distances), ranks_(ranks) {
    std::vector<size_t> place_of(ranks.size());
    for (size_t i = 0; i < ranks.size(); ++i) {
      const int host = fabric.host_of[static_cast<size_t>(ranks[i])];
      if (i == 0 || host != hosts_.back()) {
        hosts_.push_back(host);
        first_.push_back(i);
      }
      place_of[i] = hosts_.size() - 1;
    }
    first_.push_back(ranks.size());
    talks_.resize(hosts_.size());
    for (const Talk& talk : talks) {
      const size_t a = place_of[static_cast<size_t>(talk.a)];
      const size_t b = place_of[static_cast<size_t>(talk.b)];
      if (a == b) continue;
      talks_[a].push_back({b, talk.share});
      talks_[b].push_back({a, talk.share});
    }
  }

  size_t size() const { return hosts_.size(); }
  size_t weighed() const { return weighed_; }

  /// Swaps the hosts at two positions if the length decreases.
  bool try_swap(size_t a, size_t b) {
    if (!have_as_many(a, b)) return false;
    const double before = length(a) + length(b);
    swap(a, b);
    if (length(a) + length(b) < before * kShorter) return true;
    swap(a, b);
    return false;
  }

  /// Moves the two hosts with the largest distance among those that exchange messages to two other
  /// positions, starting at `first`, if the length decreases. Single swaps cannot improve a slow
  /// pair that exchanges messages at all positions except two that neither host has.
  bool try_farthest(size_t first) {
    size_t a = 0;
    size_t b = 0;
    double farthest = 0;
    for (size_t place = first; place < size(); ++place) {
      for (const Peer& peer : talks_[place]) {
        const double distance = distances_.between(hosts_[place], hosts_[peer.place], peer.share);
        if (peer.place < first || distance <= farthest) continue;
        farthest = distance;
        a = place;
        b = peer.place;
      }
    }
    const double before = length();
    for (size_t c = first; farthest > 0 && c < size(); ++c) {
      for (size_t d = first; d < size(); ++d) {
        if (c == d || weighed_ > kMostWeighed || !have_as_many(a, c)) continue;
        // The host at b may have moved to a.
        const size_t from = b == c ? a : b;
        if (!have_as_many(from, d)) continue;
        swap(a, c);
        swap(from, d);
        if (length() < before * kShorter) return true;
        swap(from, d);
        swap(a, c);
      }
    }
    return false;
  }

  const std::vector<int>& ranks() const { return ranks_; }

 private:
  struct Peer {
    size_t place;
    double share;
  };

  bool have_as_many(size_t a, size_t b) const {
    return first_[a + 1] - first_[a] == first_[b + 1] - first_[b];
  }

  void swap(size_t a, size_t b) {
    if (a == b) return;
    std::swap(hosts_[a], hosts_[b]);
    std::swap_ranges(ranks_.begin() + static_cast<std::ptrdiff_t>(first_[a]),
                     ranks_.begin() + static_cast<std::ptrdiff_t>(first_[a + 1]),
                     ranks_.begin() + static_cast<std::ptrdiff_t>(first_[b]));
  }

  /// The length of all messages of a position. Messages between two positions are as long after
  /// their hosts are swapped.
  double length(size_t place) {
    double sum = 0;
    weighed_ += talks_[place].size() + 1;
    for (const Peer& peer : talks_[place]) {
      sum += distances_.between(hosts_[place], hosts_[peer.place], peer.share);
    }
    return sum;
  }

  double length() {
    double sum = 0;
    for (size_t place = 0; place < size(); ++place) sum += length(place);
    return sum;
  }

  const HostDistances& distances_;
  std::vector<int> ranks_;
  std::vector<int> hosts_;     // by position
  std::vector<size_t> first_;  // first rank of each host; and the end
  std::vector<std::vector<Peer>> talks_;
  size_t weighed_ = 0;
};

}  // namespace

Order::Order(std::vector<int> ranks) : ranks_(std::move(ranks)) {
  if (ranks_.empty()) return;
  positions_.resize(static_cast<size_t>(*std::ranges::max_element(ranks_)) + 1, -1);
  for (int position = 0; position < size(); ++position)
    positions_[static_cast<size_t>(at(position))] = position;
}

Order near_order(const ScheduleRequest& request) {
  return toured(request, plain_order(request), Tour::kClosed);
}

Order near_across_racks(const ScheduleRequest& request) {
  const Order near = near_order(request);
  if (!may_move(request) || request.fabric->hosts.size() > kMostAligned) return near;
  const HostDistances distances(*request.fabric);
  if (!distances.pairs_differ()) return near;
  const HostRanks its(*request.fabric, near.ranks());
  using ByRack = std::vector<std::vector<int>>;
  const auto put = [&](ByRack& racks, int host) {
    const int rack = request.fabric->hosts[static_cast<size_t>(host)].rack;
    racks[static_cast<size_t>(rack)].push_back(host);
  };
  ByRack left(request.fabric->racks.size());
  ByRack by_rack(left.size());
  for (const int host : its.hosts()) put(left, host);
  std::erase_if(left, [](const std::vector<int>& hosts) { return hosts.empty(); });
  while (!left.empty()) {
    for (const int host : take_near_team(distances, left)) put(by_rack, host);
  }
  std::vector<int> hosts;
  for (const std::vector<int>& each : by_rack) hosts.insert(hosts.end(), each.begin(), each.end());
  return its.order_of(hosts);
}

int near_turn(const ScheduleRequest& request) {
  if (request.fabric == nullptr) return 1;
  if (!std::ranges::is_sorted(near_order(request).ranks())) return 0;
  const Fabric& fabric = *request.fabric;
  if (fabric.one_host()) return 1;
  const bool by_racks = fabric.racks.size() > 1;
  const auto groups = static_cast<int>(by_racks ? fabric.racks.size() : fabric.hosts.size());
  if (request.world_size % groups != 0) return 0;
  const int turn = request.world_size / groups;
  const auto begins_host = [&](int rank) {
    return rank % turn == 0 || !fabric.same_host(rank - 1, rank);
  };
  for (int rank = 0; rank < request.world_size; ++rank) {
    const int first = rank - rank % turn;
    const bool is_whole =
        by_racks ? fabric.rack_of(rank) == fabric.rack_of(first) : fabric.same_host(rank, first);
    if (!is_whole || begins_host(rank) != begins_host((rank + turn) % request.world_size)) return 0;
  }
  return turn;
}

Order near_path(const ScheduleRequest& request) {
  return toured(request, plain_order(request), Tour::kOpen);
}

Order near_path_from(const ScheduleRequest& request, int first) {
  Order given = NearOrders(request).from(first);
  return toured(request, given.ranks(), Tour::kFromFirst);
}

Order arranged(const ScheduleRequest& request, Order order, std::span<const Talk> talks,
               bool keeps_first) {
  if (!may_move(request)) return order;
  const HostDistances distances(*request.fabric);
  if (!distances.pairs_differ() && !distances.nics_differ()) return order;
  Places places(*request.fabric, distances, order.ranks(), talks);
  const size_t first = keeps_first ? 1 : 0;
  for (bool improved = true; improved && places.weighed() < kMostWeighed;) {
    improved = false;
    for (size_t a = first; a < places.size(); ++a) {
      for (size_t b = a + 1; b < places.size() && places.weighed() < kMostWeighed; ++b) {
        improved |= places.try_swap(a, b);
      }
    }
    if (!improved) improved = places.try_farthest(first);
  }
  return Order(places.ranks());
}

NearOrders::NearOrders(const ScheduleRequest& request) : near_(plain_order(request)) {
  if (request.fabric == nullptr || request.order != nullptr) return;
  for (int rank = 0; rank < request.world_size; ++rank) {
    sites_.emplace_back(request.fabric->rack_of(rank),
                        request.fabric->host_of[static_cast<size_t>(rank)]);
  }
}

Order NearOrders::from(int first) const {
  std::vector<int> ranks = near_.ranks();
  std::rotate(ranks.begin(), ranks.begin() + near_.position_of(first), ranks.end());
  if (sites_.empty()) return Order(std::move(ranks));
  const auto [rack, host] = sites_[static_cast<size_t>(first)];
  std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) {
    const auto distance = [&](int rank) {
      const auto& [its_rack, its_host] = sites_[static_cast<size_t>(rank)];
      return std::pair(its_rack != rack, its_host != host);
    };
    return distance(a) < distance(b);
  });
  return Order(std::move(ranks));
}

}  // namespace q7x2
