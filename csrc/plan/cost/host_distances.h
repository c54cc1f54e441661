// How far hosts are from each other: what a message costs between each two of them.
//
// Orders and trees follow these figures, so all ranks must compute the same ones. They are sums,
// products and quotients of numbers in the Fabric, without a call to a mathematical library.
#pragma once

#include <cstddef>
#include <vector>

#include "fabric/fabric.h"
#include "fabric/routes.h"

namespace q7x2 {

/// Distances are symmetric: of the two directions the more expensive one counts.
class HostDistances {
 public:
  /// Whether two pairs of hosts of one rack may differ at all; quick.
  static bool may_differ(const Fabric& fabric);

  /// `fabric` need not stay.
  explicit HostDistances(const Fabric& fabric);

  int hosts() const { return hosts_; }
  /// Whether some pair of hosts differs from what its NICs and racks promise: a slow or far pair,
  /// or a private link. If none does, rack and host say all about who is near.
  bool pairs_differ() const { return pairs_differ_; }
  /// Whether NICs differ in speed.
  bool nics_differ() const { return nics_differ_; }

  /// What a message costs that carries `share` of kBytes: its latency, and the time of its bytes
  /// times how often the fastest route is faster. The latter makes one slow hop worse than several
  /// that are a little slow, because the slowest hop bounds a pipeline. 0 within a host.
  double between(int a, int b, double share = 1) const {
    const Distance distance = known_.empty() ? find(a, b) : known_[index(a, b)];
    return distance.alpha + share * distance.transfer;
  }

  /// The sum of the distances to all hosts, for few hosts; for more than kMostKnown 0.
  double to_all(int host) const;

 private:
  /// An ordinary message: about a part of a call of 1 MiB.
  static constexpr double kBytes = 64 * 1024;
  /// Distances of more hosts are computed when they are asked for.
  static constexpr int kMostKnown = 256;

  struct Distance {
    double alpha = 0;
    double transfer = 0;
  };

  size_t index(int a, int b) const {
    return static_cast<size_t>(a) * static_cast<size_t>(hosts_) + static_cast<size_t>(b);
  }
  Distance one_way(int from, int to) const;
  Distance find(int a, int b) const;

  Routes routes_;
  int hosts_;
  double fastest_ = 0;  ///< rate of a route
  bool pairs_differ_;
  bool nics_differ_;
  std::vector<Distance> known_;  ///< by both hosts; empty: too many
};

}  // namespace q7x2
