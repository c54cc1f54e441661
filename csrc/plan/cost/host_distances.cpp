#include "plan/cost/host_distances.h"

#include <algorithm>
#include <cmath>

namespace q7x2 {

namespace {

bool have_different_nics(const Fabric& fabric) {
  return std::ranges::any_of(fabric.hosts, [&](const Fabric::Host& host) {
    return host.egress != fabric.hosts[0].egress || host.ingress != fabric.hosts[0].ingress;
  });
}

}  // namespace

bool HostDistances::may_differ(const Fabric& fabric) {
  return !fabric.pairs.empty() || !fabric.links.empty() || have_different_nics(fabric);
}

HostDistances::HostDistances(const Fabric& fabric)
    : routes_(fabric),
      hosts_(static_cast<int>(fabric.hosts.size())),
      pairs_differ_(!routes_.exceptions().empty()),
      nics_differ_(have_different_nics(fabric)) {
  for (const Routes::Resource& resource : routes_.resources()) {
    if (Routes::is_network(resource.kind) && std::isfinite(resource.rate)) {
      fastest_ = std::max(fastest_, resource.rate);
    }
  }
  if (hosts_ > kMostKnown || (!pairs_differ_ && !nics_differ_)) return;
  known_.reserve(static_cast<size_t>(hosts_) * static_cast<size_t>(hosts_));
  for (int a = 0; a < hosts_; ++a) {
    for (int b = 0; b < hosts_; ++b) known_.push_back(find(a, b));
  }
}

HostDistances::Distance HostDistances::one_way(int from, int to) const {
  const Routes::Route route = routes_.between_hosts(from, to);
  double rate = route.rate;
  // Whoever enters a rack once too often halves what its cable has for each.
  for (const int resource : route.resources) {
    const Routes::Resource& of = routes_.resources()[static_cast<size_t>(resource)];
    if (of.kind == Routes::Kind::kUp || of.kind == Routes::Kind::kDown) {
      rate = std::min(rate, of.rate / 2);
    }
  }
  const double transfer = std::isfinite(rate) ? kBytes / rate * (fastest_ / rate) : 0;
  return {route.cost.alpha, transfer};
}

HostDistances::Distance HostDistances::find(int a, int b) const {
  if (a == b) return {};
  const Distance there = one_way(a, b);
  const Distance back = one_way(b, a);
  return {std::max(there.alpha, back.alpha), std::max(there.transfer, back.transfer)};
}

double HostDistances::to_all(int host) const {
  double sum = 0;
  if (known_.empty()) return sum;
  for (int other = 0; other < hosts_; ++other) sum += between(host, other);
  return sum;
}

}  // namespace q7x2
