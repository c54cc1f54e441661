// What a probe measures first: latencies of all pairs at once, and a Fabric that is made of them.
#include "executor/probe/latencies.h"

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "executor/probe/survey.h"
#include "fabric/infer.h"
#include "ranks.h"

namespace q7x2 {
namespace {

using test::Rank;
using test::run_ranks;

constexpr std::chrono::seconds kTimeout{10};

void become_host_of(const Rank& rank) {
  ::setenv("Q7X2_HOST_ID", std::to_string(rank.rank).c_str(), 1);
  ::setenv("XDG_CACHE_HOME", "/dev/null/none", 1);
}

TEST(Latencies, AllPairsAtOnce) {
  run_ranks(4, [](Rank& rank) {
    become_host_of(rank);
    const std::vector<std::pair<int, int>> pairs{{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}};
    const auto found = measure_latencies(rank.group(), {0, 1, 2, 3}, pairs, 2, kTimeout);
    ASSERT_EQ(found.size(), static_cast<size_t>(3 - rank.rank));
    for (const Latency& each : found) {
      EXPECT_EQ(each.a, rank.rank);
      EXPECT_GT(each.round_trip, 0);
      EXPECT_GE(each.spread, 0);
    }
    EXPECT_EQ(decode_latencies(encode_latencies(found), 4).size(), found.size());
    rank.barrier();
  });
}

TEST(Latencies, WhatOthersHandInIsChecked) {
  const auto refuses = [](const Latency& latency) {
    EXPECT_THROW(decode_latencies(encode_latencies({latency}), 3), Error)
        << latency.a << " " << latency.b << " " << latency.round_trip << " " << latency.spread;
  };
  EXPECT_EQ(decode_latencies(encode_latencies({{0, 2, 0.1, 0.5}}), 3)[0].round_trip, 0.1);
  EXPECT_TRUE(decode_latencies("", 3).empty());
  EXPECT_THROW(decode_latencies("abc", 3), Error);
  refuses({1, 1, 0.1, 0});
  refuses({-1, 1, 0.1, 0});
  refuses({0, 3, 0.1, 0});
  refuses({0, 1, 0, 0});
  refuses({0, 1, std::numeric_limits<double>::infinity(), 0});
  refuses({0, 1, 0.1, std::nan("")});
}

TEST(Latencies, MakeAFabricOfSites) {
  Measurements measured;
  for (int host = 0; host < 4; ++host) {
    measured.host_of.push_back(host);
    measured.hosts.push_back({.name = "h" + std::to_string(host), .key = std::to_string(host)});
    for (int other = 0; other < host; ++other) {
      const bool is_far = (host < 2) != (other < 2);
      measured.pings.push_back({.a = other, .b = host, .round_trip = is_far ? 0.1 : 1e-4});
    }
  }
  const Fabric fabric = infer_latencies(measured);
  EXPECT_EQ(fabric.hosts[0].rack, fabric.hosts[1].rack);
  EXPECT_EQ(fabric.hosts[2].rack, fabric.hosts[3].rack);
  EXPECT_NE(fabric.hosts[0].rack, fabric.hosts[2].rack);
  EXPECT_NEAR(2 * fabric.racks[0].alpha, 0.05, 0.001);
  for (const Fabric::Host& host : fabric.hosts) EXPECT_EQ(host.egress, 1.25e8);
  for (const Fabric::Rack& rack : fabric.racks) EXPECT_EQ(rack.up, 0);
}

TEST(Latencies, NearHostsAreMeasuredAtOnce) {
  run_ranks(3, [](Rank& rank) {
    become_host_of(rank);
    const auto fabric = survey(rank.group(), {.warn = [](const std::string&) {},
                                              .torch = "test",
                                              .may_defer = true,
                                              .timeout = kTimeout});
    EXPECT_EQ(fabric->made.source, "probe");
    EXPECT_FALSE(fabric->awaits_rates());
    rank.barrier();
  });
}

}  // namespace
}  // namespace q7x2
