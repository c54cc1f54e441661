#include "fabric/near_groups.h"

#include <algorithm>
#include <map>
#include <set>

#include "fabric/linkage.h"
#include "fabric/scatter.h"

namespace q7x2 {
namespace {

/// Between hosts of one switch times differ by up to two, on busy machines by more, but then by
/// some hundred microseconds at most.
constexpr double kTimes = 2.5;
constexpr double kLeast = 250e-6;
/// Two groups join if this share of the pings between them is near. Other work makes a ping longer
/// and nothing makes it shorter, so few that are near say more than many that are far.
constexpr double kNearEnough = 0.25;
/// Rounds of least squares. Each takes away most of what is left of the error.
constexpr int kRounds = 32;

using Ping = Measurements::Ping;

double one_way(const Ping& ping) {
  return ping.round_trip / 2;
}

/// A ping whose repetitions differ much may have been long by chance.
double at_least(const Ping& ping) {
  return one_way(ping) * (1 - std::clamp(ping.spread, 0.0, 1.0));
}

/// Numbers groups from 0 on.
std::vector<int> numbered(const std::vector<int>& names) {
  std::map<int, int> numbers;
  std::vector<int> groups;
  for (const int name : names) {
    groups.push_back(numbers.try_emplace(name, static_cast<int>(numbers.size())).first->second);
  }
  return groups;
}

std::vector<int> groups_below(size_t hosts, const std::vector<Ping>& pings, double longest_near) {
  Linkage linkage(hosts);
  for (const Ping& ping : pings) linkage.add(ping.a, ping.b, at_least(ping) > longest_near ? 0 : 1);
  return numbered(linkage.joined(kNearEnough));
}

}  // namespace

std::vector<int> near_groups(size_t hosts, const std::vector<Ping>& all) {
  std::vector<Ping> pings;
  for (const Ping& ping : all) {
    if (ping.a != ping.b && ping.wire == Measurements::kShared) pings.push_back(ping);
  }
  std::vector<double> times;
  for (const Ping& ping : pings) times.push_back(one_way(ping));
  std::sort(times.begin(), times.end());
  for (size_t i = times.size(); i-- > 1;) {
    if (times[i] < kTimes * times[i - 1] || times[i] - times[i - 1] < kLeast) continue;
    std::vector<int> groups = groups_below(hosts, pings, times[i - 1]);
    const size_t count = std::set<int>(groups.begin(), groups.end()).size();
    if (count > 1 && count < hosts) return groups;
  }
  return std::vector<int>(hosts, 0);
}

std::vector<double> distances_from_centre(size_t groups, const std::vector<FarPing>& pings,
                                          double near) {
  std::map<HostPair, std::vector<double>> between;
  for (const FarPing& ping : pings) {
    between[unordered(ping.a, ping.b)].push_back(std::max(0.0, ping.alpha - near));
  }
  struct Distance {
    size_t other;
    double more;
  };
  std::vector<std::vector<Distance>> seen(groups);
  for (auto& [pair, times] : between) {
    const double more = median(std::move(times));
    seen[static_cast<size_t>(pair.first)].push_back({static_cast<size_t>(pair.second), more});
    seen[static_cast<size_t>(pair.second)].push_back({static_cast<size_t>(pair.first), more});
  }
  // At first both ends get half of it.
  std::vector<double> distances(groups, 0);
  for (int round = 0; round < kRounds; ++round) {
    for (size_t group = 0; group < groups; ++group) {
      if (seen[group].empty()) continue;
      double sum = 0;
      for (const auto& [other, more] : seen[group]) {
        sum += round == 0 ? more / 2 : more - distances[other];
      }
      distances[group] = std::max(0.0, sum / static_cast<double>(seen[group].size()));
    }
  }
  return distances;
}

}  // namespace q7x2
