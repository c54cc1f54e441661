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
#include "fabric/json.h"
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
    const auto group = rank.group();
    const auto found = measure_latencies(group->membership().peer_infos(), rank.rank, pairs,
                                         [&] { group->check(); });
    ASSERT_EQ(found.size(), static_cast<size_t>(3 - rank.rank));
    for (const Latency& each : found) {
      EXPECT_EQ(each.a, rank.rank);
      EXPECT_GT(each.round_trip, 0);
    }
    EXPECT_EQ(decode_latencies(encode_latencies(found), 4).size(), found.size());
    rank.barrier();
  });
}

TEST(Latencies, WhatOthersHandInIsChecked) {
  const auto refuses = [](const Latency& latency) {
    EXPECT_THROW(decode_latencies(encode_latencies({latency}), 3), Error)
        << latency.a << " " << latency.b << " " << latency.round_trip;
  };
  EXPECT_EQ(decode_latencies(encode_latencies({{0, 2, 0.1}}), 3)[0].round_trip, 0.1);
  EXPECT_TRUE(decode_latencies("", 3).empty());
  EXPECT_THROW(decode_latencies("abc", 3), Error);
  refuses({1, 1, 0.1});
  refuses({-1, 1, 0.1});
  refuses({0, 3, 0.1});
  refuses({0, 1, 0});
  refuses({0, 1, std::numeric_limits<double>::infinity()});
  refuses({0, 1, std::nan("")});
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

/// What all ranks give each other, with `round_trip` seconds between all hosts if it is not 0.
std::vector<std::string> exchanged(Rank& rank, const std::string& mine, double round_trip) {
  rank.put("latencies", mine);
  std::vector<std::string> all;
  for (int other = 0; other < rank.world_size; ++other) {
    std::vector<Latency> latencies =
        decode_latencies(rank.get(other, "latencies"), rank.world_size);
    for (Latency& each : latencies) each.round_trip = round_trip > 0 ? round_trip : each.round_trip;
    all.push_back(encode_latencies(latencies));
  }
  return all;
}

std::shared_ptr<const Fabric> survey_of(Rank& rank, double round_trip) {
  return survey(
      rank.group(),
      {.warn = [](const std::string&) {},
       .torch = "test",
       .exchange = [&](const std::string& mine) { return exchanged(rank, mine, round_trip); },
       .timeout = kTimeout});
}

TEST(Latencies, NearHostsAreMeasuredAtOnce) {
  run_ranks(3, [](Rank& rank) {
    become_host_of(rank);
    const auto fabric = survey_of(rank, 0);
    EXPECT_EQ(fabric->made.source, "probe");
    EXPECT_FALSE(fabric->awaits_rates());
    rank.barrier();
  });
}

TEST(Latencies, RatesOfFarHostsAreLeftForLater) {
  run_ranks(3, [](Rank& rank) {
    become_host_of(rank);
    const auto fabric = survey_of(rank, 0.1);
    EXPECT_TRUE(fabric->awaits_rates());
    EXPECT_EQ(fabric->pairs.size(), 6U);
    for (const Fabric::Pair& pair : fabric->pairs) EXPECT_NEAR(pair.alpha, 0.05, 0.001);
    EXPECT_EQ(fabric->copy_rate, Fabric::assumed({0}).copy_rate);
    EXPECT_FALSE(fabric->bindings[2].cpus.empty());
    const std::string digest = std::to_string(std::hash<std::string>()(to_json(*fabric)));
    rank.put("fabric", digest);
    EXPECT_EQ(digest, rank.get(0, "fabric"));
    rank.barrier();
  });
}

}  // namespace
}  // namespace q7x2
