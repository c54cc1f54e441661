#include "ledger/link_blame.h"

#include <optional>
#include <utility>

namespace q7x2 {
namespace {

using Ratio = RateTrends::Ratio;
using Ratios = RateTrends::Ratios;

/// The routes that are not explained yet.
class Routes {
 public:
  explicit Routes(std::vector<Ratio> all) : all_(std::move(all)) {}

  /// How many routes lead out of a host, or into it, if all of them are outside; else 0.
  int outside_of(int host, bool out) const {
    int count = 0;
    for (const Ratio& route : all_) {
      if (end_of(route, out) != host) continue;
      if (!route.is_outside) return 0;
      ++count;
    }
    return count;
  }
  /// Takes these routes out. Their median ratio.
  int64_t take(int host, bool out) {
    std::vector<int64_t> ratios;
    for (const Ratio& route : all_) {
      if (end_of(route, out) == host) ratios.push_back(route.ratio);
    }
    std::erase_if(all_, [&](const Ratio& route) { return end_of(route, out) == host; });
    return median_of(std::move(ratios));
  }
  const std::vector<Ratio>& left() const { return all_; }

 private:
  static int end_of(const Ratio& route, bool out) { return out ? route.of.first : route.of.second; }

  std::vector<Ratio> all_;
};

RateTrends::Resource way_of(int host, bool out) {
  return out ? RateTrends::Resource{host, kAnyHost} : RateTrends::Resource{kAnyHost, host};
}

/// The host with the most routes of those whose routes are all outside, both ways.
std::optional<int> worst_host(const Routes& routes, int hosts) {
  std::optional<int> worst;
  int most = 0;
  for (int host = 0; host < hosts; ++host) {
    const int out = routes.outside_of(host, true);
    const int in = routes.outside_of(host, false);
    if (out == 0 || in == 0 || out + in <= most) continue;
    worst = host;
    most = out + in;
  }
  return worst;
}

}  // namespace

// First the hosts that explain most: a slow host's neighbours in a ring have a slow route, too.
Ratios blame_links(std::vector<Ratio> all, int hosts) {
  Routes routes(std::move(all));
  Ratios blamed;
  while (const std::optional<int> host = worst_host(routes, hosts)) {
    for (const bool out : {true, false}) blamed[way_of(*host, out)] = routes.take(*host, out);
  }
  for (const bool out : {true, false}) {
    for (int host = 0; host < hosts; ++host) {
      if (routes.outside_of(host, out) < 2) continue;
      blamed[way_of(host, out)] = routes.take(host, out);
    }
  }
  for (const Ratio& route : routes.left()) {
    if (route.is_outside) blamed[route.of] = route.ratio;
  }
  return blamed;
}

}  // namespace q7x2
