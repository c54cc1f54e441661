#include "ledger/link_blame.h"

#include <algorithm>
#include <numeric>
#include <optional>

namespace q7x2 {
namespace {

using Ratio = RateTrends::Ratio;
using Ratios = RateTrends::Ratios;
using Kind = RatedResource::Kind;

/// Thousandths: how much a route must differ to count as changed together with others.
constexpr int64_t kSlower = 800;
constexpr int64_t kFaster = 1250;

/// A resource that several routes use: the NIC of a host, or the cable of a rack.
struct Port {
  int owner;
  Kind kind;

  RatedResource way(bool out) const {
    return out ? RatedResource{owner, kAnyHost, kind} : RatedResource{kAnyHost, owner, kind};
  }
};

/// NICs first: if a host is alone in its rack, its NIC and the cable cannot be distinguished.
std::vector<Port> ports_of(const Wiring& wiring) {
  std::vector<Port> ports;
  std::set<int> racks;
  for (size_t host = 0; host < wiring.rack_of.size(); ++host) {
    ports.push_back({static_cast<int>(host), Kind::kNetwork});
    racks.insert(wiring.rack_of[host]);
  }
  if (racks.size() < 2) return ports;
  for (const int rack : racks) ports.push_back({rack, Kind::kCable});
  return ports;
}

/// The routes that are not explained yet.
class Routes {
 public:
  Routes(std::vector<Ratio> all, const Wiring& wiring) : all_(std::move(all)), wiring_(wiring) {}

  /// How many routes use a port in one direction, if all of them have changed; otherwise 0.
  int changed_of(const Port& port, bool out) const {
    int count = 0;
    int outside = 0;
    for (const Ratio& route : all_) {
      if (!passes(route, port, out)) continue;
      if (!route.is_outside && !differs(route)) return 0;
      ++count;
      outside += route.is_outside ? 1 : 0;
    }
    return 2 * outside > count ? count : 0;
  }
  /// Removes these routes and returns their median ratio.
  int64_t take(const Port& port, bool out) {
    std::vector<int64_t> ratios;
    for (const Ratio& route : all_) {
      if (passes(route, port, out)) ratios.push_back(route.ratio);
    }
    std::erase_if(all_, [&](const Ratio& route) { return passes(route, port, out); });
    return median_of(std::move(ratios));
  }
  const std::vector<Ratio>& left() const { return all_; }

 private:
  /// Whether the route differs as much as others. All routes outside their bands differ in one
  /// direction.
  bool differs(const Ratio& route) const {
    const auto outside = std::ranges::find(all_, true, &Ratio::is_outside);
    if (outside == all_.end()) return false;
    return outside->ratio < RateBand::kOne ? route.ratio <= kSlower : route.ratio >= kFaster;
  }
  bool passes(const Ratio& route, const Port& port, bool out) const {
    int near = out ? route.of.from : route.of.to;
    if (port.kind == Kind::kNetwork) return near == port.owner;
    int far = out ? route.of.to : route.of.from;
    near = wiring_.rack_of[static_cast<size_t>(near)];
    far = wiring_.rack_of[static_cast<size_t>(far)];
    return near == port.owner && far != near;
  }

  std::vector<Ratio> all_;
  const Wiring& wiring_;
};

/// Finds a cable that the Fabric does not know: routes have changed together, and they divide the
/// hosts into groups of several hosts. Then all routes between the groups count as changed, even
/// those without traffic. Empty if there is no such cable.
Ratios blame_unknown_cable(const std::vector<Ratio>& routes, const Wiring& wiring) {
  std::vector<int64_t> outside;
  for (const Ratio& route : routes) {
    if (route.is_outside) outside.push_back(route.ratio);
  }
  if (outside.empty()) return {};
  const int64_t ratio = median_of(std::move(outside));
  // Closer to this ratio than to 1, even if noise has kept it inside its band.
  const auto has_changed = [&](const Ratio& route) {
    const int64_t square = route.ratio * route.ratio;
    return ratio < RateBand::kOne ? square < ratio * RateBand::kOne
                                  : square > ratio * RateBand::kOne;
  };
  std::vector<int> groups(wiring.rack_of.size());
  std::iota(groups.begin(), groups.end(), 0);
  const auto group = [&](int host) { return groups[static_cast<size_t>(host)]; };
  for (const Ratio& route : routes) {
    if (!has_changed(route)) {
      std::replace(groups.begin(), groups.end(), int{group(route.of.to)},
                   int{group(route.of.from)});
    }
  }
  std::set<std::pair<int, int>> pairs;
  for (const Ratio& route : routes) {
    if (!has_changed(route)) continue;
    if (group(route.of.from) == group(route.of.to)) return {};
    pairs.insert(std::minmax(route.of.from, route.of.to));
  }
  if (pairs.size() < 2) return {};  // a single route between two hosts
  Ratios blamed;
  const auto hosts = static_cast<int>(groups.size());
  for (int from = 0; from < hosts; ++from) {
    // If one host is alone in its group, its NIC is slow, or nothing is known about it.
    if (std::ranges::count(groups, group(from)) == 1) return {};
    for (int to = 0; to < hosts; ++to) {
      if (group(from) != group(to) && !wiring.is_linked(from, to)) blamed[{from, to}] = ratio;
    }
  }
  return blamed;
}

/// Among the ports all of whose routes have changed in both directions: the one with most routes.
std::optional<Port> worst_port(const Routes& routes, const std::vector<Port>& ports) {
  std::optional<Port> worst;
  int most = 0;
  for (const Port& port : ports) {
    const int out = routes.changed_of(port, true);
    const int in = routes.changed_of(port, false);
    if (out == 0 || in == 0 || out + in <= most) continue;
    worst = port;
    most = out + in;
  }
  return worst;
}

/// The same for one direction, among those with several routes.
std::optional<std::pair<Port, bool>> worst_way(const Routes& routes,
                                               const std::vector<Port>& ports) {
  std::optional<std::pair<Port, bool>> worst;
  int most = 1;
  for (const bool out : {true, false}) {
    for (const Port& port : ports) {
      const int count = routes.changed_of(port, out);
      if (count <= most) continue;
      worst = {port, out};
      most = count;
    }
  }
  return worst;
}

}  // namespace

Ratios blame_all_in_use(const std::vector<Ratio>& routes, const Wiring& wiring) {
  Ratios blamed;
  std::set<std::pair<int, int>> pairs;
  for (const Ratio& route : routes) {
    if (!route.is_outside || route.of.kind != Kind::kNetwork) return {};
    const auto [from, to, kind] = route.of;
    pairs.insert(std::minmax(from, to));
    blamed[{from, to, kind}] = route.ratio;
    blamed.try_emplace({to, from, kind}, route.ratio);
  }
  const size_t hosts = wiring.rack_of.size();
  return pairs.size() < hosts * (hosts - 1) / 2 ? blamed : Ratios{};
}

// First the cause that explains most, because the neighbours of a slow host in a ring have a slow
// route too.
Ratios blame_links(std::vector<Ratio> all, const Wiring& wiring) {
  Ratios blamed;
  for (const Ratio& route : all) {
    if (route.of.kind == Kind::kLink && route.is_outside) blamed[route.of] = route.ratio;
  }
  std::erase_if(all, [](const Ratio& route) { return route.of.kind == Kind::kLink; });
  Routes routes(std::move(all), wiring);
  const std::vector<Port> ports = ports_of(wiring);
  while (const std::optional<Port> port = worst_port(routes, ports)) {
    for (const bool out : {true, false}) blamed[port->way(out)] = routes.take(*port, out);
  }
  while (const auto way = worst_way(routes, ports)) {
    const auto& [port, out] = *way;
    blamed[port.way(out)] = routes.take(port, out);
  }
  if (Ratios cable = blame_unknown_cable(routes.left(), wiring); blamed.empty() && !cable.empty()) {
    return cable;
  }
  for (const Ratio& route : routes.left()) {
    if (route.is_outside) blamed[route.of] = route.ratio;
  }
  return blamed;
}

}  // namespace q7x2
