#include "executor/probe/far_pairs.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "fabric/linkage.h"
#include "fabric/near_groups.h"

namespace q7x2 {
namespace {

/// Round trips of a stream: many connections begin one after the other, and each doubles what it
/// sends.
constexpr double kRoundTrips = 18;
constexpr double kLeastSeconds = 0.5;
constexpr uint64_t kShortestTrain = uint64_t{64} << 10;
constexpr uint64_t kLongestTrain = uint64_t{4} << 20;
/// A train message is that share of what a connection has on the way.
constexpr double kTrainShare = 0.6;
/// A shorter time, as a share of the round trip, is noise of the latter.
constexpr double kResolution = 0.005;
/// Connections that together have less than this share of their paths are bounded by their windows.
constexpr double kBounded = 0.65;
/// A window of less than this share of another one's is small by chance, and what was measured with
/// it does not count.
constexpr double kHeldUp = 0.5;

/// A flow that is slower than another one by more than this factor may have been held up.
constexpr double kManyTimes = 4;

/// The rate of the path of one stream. If a long message takes no longer than a short one did, the
/// round trip was measured while the machine was busy, and nothing is known but what the stream
/// carried.
double path_rate(const FarStream& stream) {
  if (stream.bytes == 0) return stream.warm;
  const double on_wire = stream.seconds - stream.round_trip;
  if (on_wire <= 0) return stream.warm;
  return static_cast<double>(stream.bytes) / std::max(on_wire, kResolution * stream.round_trip);
}

/// All streams from one site to another.
struct Line {
  double warm = 0;     // rate of all connections together
  double paths = 0;    // the same of the paths, while messages compete for them
  double fastest = 0;  // path
  double window = 0;   // the largest
  int streams = 0;
  double variance = 0;  // how much `warm` scatters, squared

  void add(const FarStream& stream) {
    ++streams;
    warm += stream.warm;
    variance += std::pow(stream.spread * stream.warm, 2);
    paths += path_rate(stream);
    fastest = std::max(fastest, path_rate(stream));
    window = std::max(window, stream.warm * stream.round_trip);
  }
  bool is_full() const { return warm >= kBounded * paths; }
  /// Streams that share a line take from each other, so that their sum scatters less than this.
  double spread() const { return warm > 0 ? std::sqrt(variance) / warm : 0; }
  double rate() const { return is_full() ? std::max(warm, fastest) : paths; }
  bool has_more_on_its_way(const Line& other) const {
    return is_full() != other.is_full() ? is_full() : window > other.window;
  }
};

}  // namespace

double seconds_of_far_stream(double round_trip) {
  return std::max(kRoundTrips * round_trip, kLeastSeconds);
}

uint64_t train_bytes(double rate, double round_trip) {
  return std::clamp(static_cast<uint64_t>(kTrainShare * rate * round_trip), kShortestTrain,
                    kLongestTrain);
}

std::vector<FarFlow> far_flows(const std::vector<FarStream>& streams,
                               const std::vector<int>& sites) {
  const auto ends = [&](const FarStream& stream) {
    return std::pair(sites[static_cast<size_t>(stream.from)],
                     sites[static_cast<size_t>(stream.to)]);
  };
  std::map<std::pair<int, int>, Line> lines;  // from one site to another
  for (const FarStream& stream : streams) lines[ends(stream)].add(stream);
  std::map<HostPair, Line> best;  // by two sites: of both directions the one with more on its way
  for (const auto& [between, line] : lines) {
    Line& so_far = best[unordered(between.first, between.second)];
    if (so_far.streams == 0 || line.has_more_on_its_way(so_far)) so_far = line;
  }
  std::vector<FarFlow> flows;
  for (const FarStream& stream : streams) {
    const Line& line = lines[ends(stream)];
    const Line& other = best[unordered(ends(stream).first, ends(stream).second)];
    const bool is_held_up = !line.is_full() && line.window < other.window * kHeldUp;
    const double rate = is_held_up || (!line.is_full() && other.is_full())
                            ? other.rate() / other.streams
                        : line.is_full() ? line.rate() / line.streams
                                         : path_rate(stream);
    flows.push_back(
        {.rate = rate, .window = other.is_full() ? 0 : other.window, .spread = line.spread()});
  }
  return flows;
}

bool are_lopsided(const std::vector<Measurements::Flow>& flows) {
  for (size_t i = 0; i + 1 < flows.size(); i += 2) {
    const auto [slower, faster] = std::minmax(flows[i].rate, flows[i + 1].rate);
    if (faster > kManyTimes * slower) return true;
  }
  return false;
}

bool is_better(const Measurements::Flow& now, const Measurements::Flow& before) {
  if (now.rate > kManyTimes * before.rate) return true;
  return now.spread < before.spread && before.rate <= kManyTimes * now.rate;
}

std::vector<int> sites_of(size_t hosts, const std::vector<Measurements::Ping>& pings) {
  std::vector<int> sites = near_groups(hosts, pings);
  const bool is_one = std::ranges::all_of(sites, [](int site) { return site == 0; });
  const bool has_far = std::ranges::any_of(
      pings, [](const Measurements::Ping& ping) { return is_far(ping.round_trip); });
  if (is_one && has_far) std::iota(sites.begin(), sites.end(), 0);
  return sites;
}

std::vector<std::vector<std::pair<int, int>>> streamed_rounds(
    const std::vector<std::vector<std::pair<int, int>>>& rounds, const std::vector<int>& sites,
    const std::vector<Measurements::Ping>& pings) {
  std::map<HostPair, double> round_trips;
  for (const Measurements::Ping& ping : pings) {
    if (ping.wire == Measurements::kShared)
      round_trips[unordered(ping.a, ping.b)] = ping.round_trip;
  }
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
