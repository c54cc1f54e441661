// Far hosts in a probe: which of them stream, when a stream has found its rate, and what is made of
// the figures. A path in a virtual clock has a rate, a round trip, and the most bytes on their way.
#include "executor/probe/far_pairs.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "executor/probe/pipe_watch.h"
#include "executor/probe/stream_meter.h"
#include "executor/probe/tournament.h"
#include "fabric/linkage.h"

namespace q7x2 {
namespace {

constexpr double kInitialWindow = 14.6e3;  // bytes: ten packets
constexpr double kMostBytes = 64 << 20;    // of a stream

TimePoint at(double seconds) {
  return TimePoint(
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(1 + seconds)));
}

/// TCP over a path: as many bytes in each round trip as there may be on the way, and twice as many
/// in the next, up to `buffers` and to what the path takes.
struct Path {
  double rate;        // bytes per second
  double round_trip;  // seconds
  double buffers;     // bytes

  double carried() const { return std::min(rate, buffers / round_trip); }

  struct Stream {
    StreamMeter meter;
    double seconds = 0;
    size_t bytes = 0;
  };
  Stream run() const {
    Stream stream{.meter = StreamMeter(0.3, round_trip)};
    PipeWatch watch(round_trip);
    double window = kInitialWindow;
    double time = round_trip / 2;
    while (!watch.is_full()) {
      // A flight leaves at the rate of the path, and the next one when it has been acknowledged.
      const double flight = std::min(window, buffers);
      const double wire = flight / rate;
      constexpr int kMessages = 32;
      for (int i = 0; i < kMessages; ++i) {
        const TimePoint now = at(time + wire * (i + 1) / kMessages);
        stream.bytes += static_cast<size_t>(flight / kMessages);
        stream.meter.passed(now, static_cast<size_t>(flight / kMessages));
        watch.acknowledged(now, stream.bytes);
      }
      time += std::max(round_trip, wire);
      window = std::min(2 * window, std::max(2 * rate * round_trip, 2 * kInitialWindow));
    }
    stream.seconds = time;
    return stream;
  }
};

TEST(FarPairs, AStreamFindsTheRateOfAWarmConnectionInBoundedTime) {
  for (const double round_trip : {6e-3, 20e-3, 100e-3, 300e-3}) {
    for (const double rate : {1.25e6, 12.5e6, 125e6, 1.25e9, 3.125e9}) {
      for (const double buffers : {0.2e6, 3e6, 6e6, 100e6}) {
        const Path path{rate, round_trip, buffers};
        const Path::Stream stream = path.run();
        const double found = stream.meter.steady_rate();
        EXPECT_LE(found, 1.12 * path.carried());
        // A stream that has to end because of its bytes has seen less.
        if (5 * path.carried() * std::max(round_trip, 0.03) < kMostBytes) {
          EXPECT_GE(found, 0.88 * path.carried())
              << rate << " bytes per second, round trip " << round_trip << ", buffers " << buffers;
        }
        EXPECT_LE(stream.seconds, 18 * std::max(round_trip, 0.03));
        EXPECT_LE(stream.bytes, (size_t{64} << 20) + static_cast<size_t>(buffers));
        EXPECT_EQ(stream.meter.burst(), 0);
      }
    }
  }
}

TEST(FarPairs, AWatchWaitsAsLongAsTheRateGrows) {
  PipeWatch watch(0.1);
  double bytes = kInitialWindow;
  double sum = 0;
  for (int round = 0; round < 8; ++round, bytes *= 2) {
    watch.acknowledged(at(0.1 * round), static_cast<size_t>(sum += bytes));
    EXPECT_FALSE(watch.is_full()) << round;
  }
  for (int round = 8; round < 12; ++round) {
    watch.acknowledged(at(0.1 * round), static_cast<size_t>(sum += bytes));
  }
  EXPECT_TRUE(watch.is_full());
}

/// A stream at `warm` bytes per second over a path of `path`, as its train has seen it.
FarStream stream_of(int from, int to, double warm, double path, double round_trip = 100e-3) {
  const uint64_t bytes = train_bytes(warm, round_trip);
  return {from, to, warm, round_trip, bytes, round_trip + static_cast<double>(bytes) / path};
}

TEST(FarPairs, WhatFillsThePathHasNoWindow) {
  const auto flows =
      far_flows({stream_of(0, 1, 120e6, 125e6), stream_of(1, 0, 110e6, 125e6)}, {0, 1});
  for (const FarFlow& flow : flows) {
    EXPECT_NEAR(flow.rate, 125e6, 1);
    EXPECT_EQ(flow.window, 0);
  }
}

TEST(FarPairs, WhatIsSlowerThanThePathIsBoundedByItsWindow) {
  const auto flows =
      far_flows({stream_of(0, 1, 30e6, 125e6), stream_of(1, 0, 29e6, 120e6)}, {0, 1});
  EXPECT_NEAR(flows[0].rate, 125e6, 1);
  EXPECT_NEAR(flows[1].rate, 120e6, 1);
  for (const FarFlow& flow : flows) EXPECT_NEAR(flow.window, 3e6, 1);
}

TEST(FarPairs, DirectionsOfALineHaveTheirOwnRates) {
  const auto flows =
      far_flows({stream_of(0, 1, 12e6, 12.5e6), stream_of(1, 0, 2.4e6, 2.5e6)}, {0, 1});
  EXPECT_NEAR(flows[0].rate, 12.5e6, 1);
  EXPECT_NEAR(flows[1].rate, 2.5e6, 1);
  for (const FarFlow& flow : flows) EXPECT_EQ(flow.window, 0);
}

// Two pairs of hosts between two sites: one got nearly all of the line while both streamed.
TEST(FarPairs, ALineThatIsFullIsSharedEqually) {
  const auto flows =
      far_flows({stream_of(0, 2, 120e6, 80e6), stream_of(1, 3, 2e6, 60e6)}, {0, 0, 1, 1});
  for (const FarFlow& flow : flows) {
    EXPECT_NEAR(flow.rate, 61e6, 1);
    EXPECT_EQ(flow.window, 0);
  }
}

TEST(FarPairs, WindowsAreFoundWhilePairsCompeteForALine) {
  const auto flows = far_flows({stream_of(0, 2, 27e6, 60e6), stream_of(1, 3, 26e6, 60e6),
                                stream_of(2, 0, 26e6, 58e6), stream_of(3, 1, 24e6, 60e6)},
                               {0, 0, 1, 1});
  for (const FarFlow& flow : flows) {
    EXPECT_NEAR(flow.rate, 60e6, 3e6);
    EXPECT_NEAR(flow.window, 2.7e6, 1);
  }
}

TEST(FarPairs, AWindowThatIsSmallByChanceDoesNotCount) {
  const auto bounded =
      far_flows({stream_of(0, 1, 30e6, 125e6), stream_of(1, 0, 1e6, 300e6)}, {0, 1});
  for (const FarFlow& flow : bounded) {
    EXPECT_NEAR(flow.rate, 125e6, 1);
    EXPECT_NEAR(flow.window, 3e6, 1);
  }
  const auto full = far_flows({stream_of(0, 1, 110e6, 125e6), stream_of(1, 0, 4e6, 19e6)}, {0, 1});
  for (const FarFlow& flow : full) {
    EXPECT_NEAR(flow.rate, 125e6, 1);
    EXPECT_EQ(flow.window, 0);
  }
}

TEST(FarPairs, AMessageThatSeemsToTakeNoTimeSaysNothing) {
  const auto flows = far_flows({{0, 1, 30e6, 100e-3, 1'000'000, 99e-3}}, {0, 1});
  EXPECT_NEAR(flows[0].rate, 30e6, 1);
  EXPECT_EQ(flows[0].window, 0);
  const auto fast = far_flows({{0, 1, 30e6, 100e-3, 1'000'000, 100.001e-3}}, {0, 1});
  EXPECT_LT(fast[0].rate, 1e10);
}

// Many connections need no train: what they carried is what they can carry.
TEST(FarPairs, AStreamWithoutATrainHasTheRateOfItsLine) {
  const auto flows = far_flows({{.from = 0, .to = 2, .warm = 20e6, .round_trip = 0.1},
                                {.from = 1, .to = 3, .warm = 5e6, .round_trip = 0.1}},
                               {0, 0, 1, 1});
  for (const FarFlow& flow : flows) {
    EXPECT_NEAR(flow.rate, 12.5e6, 1);
    EXPECT_EQ(flow.window, 0);
  }
}

// What one stream of a line loses, another one gets.
TEST(FarPairs, ALineScattersLessThanItsStreams) {
  const FarStream one{.from = 0, .to = 4, .warm = 5e6, .round_trip = 0.1, .spread = 1.5};
  EXPECT_NEAR(far_flows({one}, {0, 0, 0, 0, 1})[0].spread, 1.5, 1e-9);
  std::vector<FarStream> streams;
  for (int i = 0; i < 4; ++i) {
    streams.push_back(one);
    streams.back().from = i;
  }
  for (const FarFlow& flow : far_flows(streams, {0, 0, 0, 0, 1})) {
    EXPECT_NEAR(flow.spread, 0.75, 1e-9);
  }
  EXPECT_EQ(far_flows({{.from = 0, .to = 1, .spread = 1}}, {0, 1})[0].spread, 0);
}

TEST(FarPairs, HostsThatAreAllFarFromEachOtherAreSitesOfTheirOwn) {
  EXPECT_EQ(sites_of(2, {{0, 1, 0.1, 0.1, 0}}), (std::vector<int>{0, 1}));
  EXPECT_EQ(sites_of(2, {{0, 1, 1e-4, 0.1, 0}}), (std::vector<int>{0, 0}));
}

TEST(FarPairs, TrainsFitIntoWhatIsOnTheWayAndTakeLittleTime) {
  for (const double round_trip : {20e-3, 100e-3}) {
    for (const double rate : {1.25e6, 12.5e6, 125e6, 1.25e9}) {
      const auto bytes = static_cast<double>(train_bytes(rate, round_trip));
      EXPECT_LE(bytes, std::max(rate * round_trip, 65536.0));
      EXPECT_LE(bytes / rate, 0.06);
    }
  }
}

/// Pings of hosts at sites that are 50 ms from each other.
std::vector<Measurements::Ping> pings_of(const std::vector<int>& sites) {
  std::vector<Measurements::Ping> pings;
  for (int a = 0; a < static_cast<int>(sites.size()); ++a) {
    for (int b = a + 1; b < static_cast<int>(sites.size()); ++b) {
      const bool is_near = sites[static_cast<size_t>(a)] == sites[static_cast<size_t>(b)];
      pings.push_back({a, b, is_near ? 1e-4 : 0.1, 0.1, 3e-6});
    }
  }
  return pings;
}

TEST(FarPairs, EachTwoSitesStreamInOneRoundAndNearHostsInAll) {
  for (const std::vector<int>& sites : std::vector<std::vector<int>>{
           {0, 0, 1, 1}, {0, 1, 0, 1}, {0, 0, 0, 1, 1, 1}, {0, 0, 1, 1, 2, 2}, {0, 1, 1, 1, 1}}) {
    const auto rounds = tournament(static_cast<int>(sites.size()), 16);
    const auto streamed = streamed_rounds(rounds, sites, pings_of(sites));
    ASSERT_EQ(streamed.size(), rounds.size());
    std::map<HostPair, std::set<size_t>> rounds_of;  // by two sites
    size_t near = 0;
    for (size_t round = 0; round < streamed.size(); ++round) {
      for (const auto& [a, b] : streamed[round]) {
        const int site_a = sites[static_cast<size_t>(a)];
        const int site_b = sites[static_cast<size_t>(b)];
        if (site_a == site_b) {
          ++near;
        } else {
          rounds_of[unordered(site_a, site_b)].insert(round);
        }
      }
    }
    size_t all_near = 0;
    for (const auto& round : rounds) {
      for (const auto& [a, b] : round) {
        all_near += sites[static_cast<size_t>(a)] == sites[static_cast<size_t>(b)] ? 1 : 0;
      }
    }
    EXPECT_EQ(near, all_near);
    const auto count = static_cast<size_t>(std::ranges::max(sites)) + 1;
    EXPECT_EQ(rounds_of.size(), count * (count - 1) / 2);
    for (const auto& [between, those] : rounds_of) EXPECT_EQ(those.size(), 1U);
  }
}

TEST(FarPairs, OfTwoSitesTheRoundCountsInWhichMostMeet) {
  const std::vector<int> sites{0, 0, 1, 1};
  const auto streamed = streamed_rounds(tournament(4, 16), sites, pings_of(sites));
  size_t most = 0;
  for (const auto& round : streamed) most = std::max(most, round.size());
  EXPECT_EQ(most, 2U);
}

TEST(FarPairs, HostsThatAreAllFarFromEachOtherAllStream) {
  const std::vector<int> sites{0, 1, 2, 3};
  const auto rounds = tournament(4, 16);
  EXPECT_EQ(streamed_rounds(rounds, sites, pings_of(sites)), rounds);
}

TEST(FarPairs, NearHostsAllStream) {
  const std::vector<int> sites{0, 0, 0, 0, 0};
  const auto rounds = tournament(5, 16);
  EXPECT_EQ(streamed_rounds(rounds, sites, pings_of(sites)), rounds);
}

// A slow start that ended too early looks steady.
TEST(FarPairs, AFlowThatWasHeldUpIsMeasuredAgain) {
  using Flow = Measurements::Flow;
  const auto flow = [](double rate, double spread) { return Flow{.rate = rate, .spread = spread}; };
  EXPECT_TRUE(are_lopsided({flow(12e6, 1), flow(12e6, 1), flow(12e6, 1), flow(0.4e6, 0.2)}));
  EXPECT_FALSE(are_lopsided({flow(12e6, 1), flow(4e6, 1), flow(0.4e6, 0.2), flow(0.4e6, 0.2)}));
  EXPECT_FALSE(are_lopsided({}));
  EXPECT_TRUE(is_better(flow(12e6, 1), flow(0.4e6, 0.2)));
  EXPECT_FALSE(is_better(flow(0.4e6, 0.2), flow(12e6, 1)));
  EXPECT_TRUE(is_better(flow(10e6, 0.2), flow(12e6, 1)));
  EXPECT_FALSE(is_better(flow(12e6, 1), flow(10e6, 0.2)));
}

}  // namespace
}  // namespace q7x2
