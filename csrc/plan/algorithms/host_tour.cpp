#include "plan/algorithms/host_tour.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

namespace q7x2 {
namespace {

/// Maximum number of changes that are evaluated for one tour: a few milliseconds.
constexpr long kMostLooks = 400'000;
/// The time for dynamic programming is exponential in the number of hosts.
constexpr size_t kMostExact = 10;
/// The time for a greedy tour grows with the square of the number of hosts. kMostStarts divided by
/// the hosts is the number of further starting points.
constexpr size_t kMostGreedy = 512;
constexpr size_t kMostStarts = 1024;
/// A tour must be shorter by at least this factor to count as shorter.
constexpr double kShorter = 1 - 1e-9;

double length_of(const HostDistances& distances, const std::vector<int>& row, Tour kind) {
  double sum = 0;
  for (size_t i = 0; i + 1 < row.size(); ++i) sum += distances.between(row[i], row[i + 1]);
  if (kind == Tour::kClosed) sum += distances.between(row.back(), row.front());
  return sum;
}

class Improvement {
 public:
  Improvement(const HostDistances& distances, std::vector<int> hosts, Tour kind)
      : distances_(distances), hosts_(std::move(hosts)), kind_(kind) {}

  std::vector<int> run() {
    if (hosts_.size() < 3) return std::move(hosts_);
    const double least = least_hop();
    for (bool improved = true; improved && looks_ < kMostLooks;) {
      improved = false;
      for (size_t i = 0; i < hops() && looks_ < kMostLooks; ++i) {
        if (hop(i) <= least * (1 + 1e-9)) continue;
        improved |= improve(i);
      }
    }
    return std::move(hosts_);
  }

 private:
  size_t size() const { return hosts_.size(); }
  /// Hop i goes from position i to the next one.
  size_t hops() const { return kind_ == Tour::kClosed ? size() : size() - 1; }
  int at(size_t position) const { return hosts_[position % size()]; }
  double distance(size_t a, size_t b) const { return distances_.between(at(a), at(b)); }
  double hop(size_t i) const { return distance(i, i + 1); }

  double least_hop() const {
    double least = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < hops(); ++i) least = std::min(least, hop(i));
    return least;
  }

  /// The first position whose host may move.
  size_t first_movable() const { return kind_ == Tour::kFromFirst ? 1 : 0; }

  bool improve(size_t i) {
    for (size_t j = 0; j < hops(); ++j) {
      ++looks_;
      if (turn_round(std::min(i, j), std::max(i, j))) return true;
    }
    if (kind_ != Tour::kClosed && turn_end(i)) return true;
    return move(i) || move((i + 1) % size());
  }

  /// 2-opt: reverses the hosts between two hops.
  bool turn_round(size_t i, size_t j) {
    if (j - i < 2) return false;
    const double before = hop(i) + hop(j);
    const double after = distance(i, j) + distance(i + 1, j + 1);
    if (after >= before * kShorter) return false;
    std::reverse(hosts_.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                 hosts_.begin() + static_cast<std::ptrdiff_t>(j) + 1);
    return true;
  }

  /// Reverses the end of an open tour after a hop, or its beginning before it.
  bool turn_end(size_t i) {
    const auto middle = hosts_.begin() + static_cast<std::ptrdiff_t>(i) + 1;
    if (distance(i, size() - 1) < hop(i) * kShorter) {
      std::reverse(middle, hosts_.end());
      return true;
    }
    if (kind_ == Tour::kOpen && distance(0, i + 1) < hop(i) * kShorter) {
      std::reverse(hosts_.begin(), middle);
      return true;
    }
    return false;
  }

  /// Or-opt: moves one host between two others, or to an end.
  bool move(size_t from) {
    if (from < first_movable()) return false;
    const double now = length(hosts_);
    std::vector<int> without = hosts_;
    without.erase(without.begin() + static_cast<std::ptrdiff_t>(from));
    const int host = at(from);
    const double rest = length(without);
    double best = now * kShorter;
    size_t place = size();
    for (size_t to = first_movable(); to <= without.size(); ++to) {
      ++looks_;
      const double with = rest + detour(without, to, host);
      if (with >= best) continue;
      best = with;
      place = to;
    }
    if (place == size()) return false;
    without.insert(without.begin() + static_cast<std::ptrdiff_t>(place), host);
    hosts_ = std::move(without);
    return true;
  }

  /// How much the host adds to the length before position `to`.
  double detour(const std::vector<int>& row, size_t to, int host) const {
    const size_t n = row.size();
    const bool closed = kind_ == Tour::kClosed;
    const bool has_left = to > 0 || closed;
    const bool has_right = to < n || closed;
    const int left = row[(to + n - 1) % n];
    const int right = row[to % n];
    double more = 0;
    if (has_left) more += distances_.between(left, host);
    if (has_right) more += distances_.between(host, right);
    if (has_left && has_right) more -= distances_.between(left, right);
    return more;
  }

  double length(const std::vector<int>& row) const { return length_of(distances_, row, kind_); }

  const HostDistances& distances_;
  std::vector<int> hosts_;
  Tour kind_;
  long looks_ = 0;
};

std::vector<int> greedy(const HostDistances& distances, const std::vector<int>& given,
                        size_t start) {
  std::vector<int> row{given[start]};
  std::vector<int> left = given;
  left.erase(left.begin() + static_cast<std::ptrdiff_t>(start));
  while (!left.empty()) {
    const auto nearest = std::ranges::min_element(
        left, {}, [&](int host) { return distances.between(row.back(), host); });
    row.push_back(*nearest);
    left.erase(nearest);
  }
  return row;
}

/// The shortest tour, by dynamic programming over sets of hosts. A closed tour begins at the first
/// host, too.
class Exact {
 public:
  Exact(const HostDistances& distances, const std::vector<int>& hosts, Tour kind)
      : distances_(distances), hosts_(hosts), kind_(kind), n_(hosts.size()) {
    best_.assign((size_t{1} << n_) * n_, {kNever, n_});
    for (size_t host = 0; host < (kind == Tour::kOpen ? n_ : 1); ++host) {
      at(size_t{1} << host, host) = {0, n_};
    }
    for (size_t set = 1; set < size_t{1} << n_; ++set) {
      for (size_t last = 0; last < n_; ++last) extend(set, last);
    }
  }

  std::vector<int> tour() {
    size_t set = (size_t{1} << n_) - 1;
    size_t last = 0;
    double least = kNever;
    for (size_t host = 0; host < n_; ++host) {
      const double home = kind_ == Tour::kClosed ? distances_.between(hosts_[host], hosts_[0]) : 0;
      if (at(set, host).length + home >= least * kShorter) continue;
      least = at(set, host).length + home;
      last = host;
    }
    std::vector<int> row;
    while (last < n_) {
      row.push_back(hosts_[last]);
      const size_t before = at(set, last).before;
      set ^= size_t{1} << last;
      last = before;
    }
    std::ranges::reverse(row);
    return row;
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  struct Best {
    double length;
    size_t before;  // the host before; n_: none
  };

  Best& at(size_t set, size_t last) { return best_[set * n_ + last]; }

  void extend(size_t set, size_t last) {
    const double length = at(set, last).length;
    if (length == kNever) return;
    for (size_t next = 0; next < n_; ++next) {
      if ((set >> next & 1) != 0) continue;
      Best& found = at(set | size_t{1} << next, next);
      const double with = length + distances_.between(hosts_[last], hosts_[next]);
      if (with < found.length * kShorter) found = {with, last};
    }
  }

  const HostDistances& distances_;
  const std::vector<int>& hosts_;
  Tour kind_;
  size_t n_;
  std::vector<Best> best_;  // by the set of visited hosts and the last of them
};

}  // namespace

std::vector<int> short_tour(const HostDistances& distances, std::vector<int> given, Tour kind) {
  if (!distances.pairs_differ() || given.size() < 3) return given;
  const auto shorter = [&](std::vector<int> best, std::vector<int> other) {
    const bool is_shorter =
        length_of(distances, other, kind) < length_of(distances, best, kind) * kShorter;
    return is_shorter ? other : best;
  };
  if (given.size() <= kMostExact) return shorter(given, Exact(distances, given, kind).tour());
  std::vector<int> best = Improvement(distances, given, kind).run();
  if (given.size() > kMostGreedy) return best;
  const size_t starts = kind == Tour::kFromFirst ? 1 : given.size();
  const size_t step = std::max<size_t>(1, starts * given.size() / kMostStarts);
  for (size_t start = 0; start < starts; start += step) {
    best = shorter(best, Improvement(distances, greedy(distances, given, start), kind).run());
  }
  return best;
}

}  // namespace q7x2
