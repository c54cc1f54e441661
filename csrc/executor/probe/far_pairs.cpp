#include "executor/probe/far_pairs.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "fabric/linkage.h"
#include "fabric/near_groups.h"

namespace q7x2 {
namespace {

constexpr uint64_t kShortestTrain = uint64_t{64} << 10;
constexpr uint64_t kLongestTrain = uint64_t{2} << 20;
/// No path is faster: a time below that is noise of the round trip.
constexpr double kFastestPath = 12.5e9;
/// A connection slower than this share of its path is bounded by its window.
constexpr double kBounded = 0.8;

/// The site of each host: hosts that are all far from each other are sites of their own.
std::vector<int> sites_of(size_t hosts, const std::vector<Measurements::Ping>& pings) {
  std::vector<int> sites = near_groups(hosts, pings);
  if (std::ranges::all_of(sites, [](int site) { return site == 0; })) {
    std::iota(sites.begin(), sites.end(), 0);
  }
  return sites;
}

}  // namespace

uint64_t train_bytes(double rate, double round_trip) {
  return std::clamp(static_cast<uint64_t>(rate * round_trip / 2), kShortestTrain, kLongestTrain);
}

FarFlow far_flow(double warm, double round_trip, uint64_t bytes, double seconds) {
  const auto length = static_cast<double>(bytes);
  const double path = length / std::max(seconds - round_trip, length / kFastestPath);
  if (warm >= kBounded * path) return {.rate = std::max(warm, path)};
  return {.rate = path, .window = warm * round_trip};
}

std::vector<std::vector<std::pair<int, int>>> streamed_rounds(
    const std::vector<std::vector<std::pair<int, int>>>& rounds, size_t hosts,
    const std::vector<Measurements::Ping>& pings) {
  std::map<HostPair, double> round_trips;
  for (const Measurements::Ping& ping : pings) {
    if (ping.wire == Measurements::kShared)
      round_trips[unordered(ping.a, ping.b)] = ping.round_trip;
  }
  const std::vector<int> sites = sites_of(hosts, pings);
  const auto is_far_pair = [&](const std::pair<int, int>& pair) {
    const auto found = round_trips.find(unordered(pair.first, pair.second));
    return found != round_trips.end() && is_far(found->second);
  };
  const auto sites_of_pair = [&](const std::pair<int, int>& pair) {
    return unordered(sites[static_cast<size_t>(pair.first)],
                     sites[static_cast<size_t>(pair.second)]);
  };
  struct Best {
    int pairs = 0;
    size_t round = 0;
  };
  std::map<HostPair, Best> best;  // by two sites
  for (size_t round = 0; round < rounds.size(); ++round) {
    std::map<HostPair, int> meeting;
    for (const auto& pair : rounds[round]) {
      if (is_far_pair(pair)) ++meeting[sites_of_pair(pair)];
    }
    for (const auto& [between, pairs] : meeting) {
      if (Best& so_far = best[between]; pairs > so_far.pairs) so_far = {pairs, round};
    }
  }
  std::vector<std::vector<std::pair<int, int>>> streamed = rounds;
  for (size_t round = 0; round < streamed.size(); ++round) {
    std::erase_if(streamed[round], [&](const auto& pair) {
      return is_far_pair(pair) && best[sites_of_pair(pair)].round != round;
    });
  }
  return streamed;
}

}  // namespace q7x2
