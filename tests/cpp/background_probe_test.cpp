// Rates that are measured while a group is in use already: the ranks' own, and none if a rank
// leaves.
#include "executor/probe/background_probe.h"

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "fabric/json.h"
#include "ranks.h"

namespace q7x2 {
namespace {

using test::Rank;
using test::run_ranks;

constexpr std::chrono::seconds kTimeout{10};

SurveyOptions options() {
  return {.warn = [](const std::string&) {}, .torch = "test", .timeout = kTimeout};
}

/// What a group of hosts that are far apart is made with.
std::shared_ptr<const Fabric> latencies_of(const Group& group) {
  const Placement placement = placement_of(group);
  Fabric fabric = Fabric::assumed(placement.host_of);
  for (size_t host = 0; host < placement.names.size(); ++host) {
    fabric.hosts[host].name = placement.names[host];
    fabric.hosts[host].key = placement.keys[host];
    fabric.hosts[host].cores = 5;
  }
  fabric.made.source = Fabric::kLatencies;
  return std::make_shared<const Fabric>(std::move(fabric));
}

void become_host_of(const Rank& rank) {
  ::setenv("Q7X2_HOST_ID", std::to_string(rank.rank).c_str(), 1);
  ::setenv("XDG_CACHE_HOME", "/dev/null/none", 1);
}

// 50 ms, of which a fifth at 12.5 MB/s are 125 KB.
TEST(BackgroundProbe, CallsAreLongByTheLatency) {
  Fabric latencies = Fabric::uniform(2, 1, 1.25e8);
  EXPECT_EQ(least_long_call(latencies), size_t{16} << 10);
  latencies.pairs = {{.from = 0, .to = 1, .alpha = 0.02}, {.from = 1, .to = 0, .alpha = 0.05}};
  EXPECT_NEAR(static_cast<double>(least_long_call(latencies)), 125e3, 1);
}

TEST(BackgroundProbe, AllRanksFindTheSameRates) {
  run_ranks(3, [](Rank& rank) {
    become_host_of(rank);
    const auto group = rank.group();
    const auto latencies = latencies_of(*group);
    const auto probe = BackgroundProbe::begin(*group, latencies, options());
    EXPECT_EQ(BackgroundProbe::of(placement_of(*group)), probe);
    EXPECT_EQ(probe->found(), nullptr);
    const auto found = probe->wait([&] { group->check(); });
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(probe->found(), found);
    EXPECT_EQ(found->made.source, "probe");
    const std::optional<Fabric> fabric = with_rates(*latencies, *found);
    ASSERT_TRUE(fabric);
    EXPECT_EQ(fabric->hosts[0].cores, 5);
    EXPECT_GT(fabric->hosts[2].egress, 0);
    EXPECT_EQ(fabric->pairs.size(), 6U);
    const std::string digest = std::to_string(std::hash<std::string>()(to_json(*fabric)));
    rank.put("fabric", digest);
    EXPECT_EQ(digest, rank.get(0, "fabric"));
    group->check();
    rank.barrier();
  });
}

TEST(BackgroundProbe, AGroupOfSomeHostsHasItsPart) {
  run_ranks(3, [](Rank& rank) {
    become_host_of(rank);
    const auto all = rank.group();
    const auto probe = BackgroundProbe::begin(*all, latencies_of(*all), options());
    if (rank.rank > 0) {
      const auto some = rank.group("some", {2, 1});
      EXPECT_EQ(BackgroundProbe::of(placement_of(*some)), probe);
      const auto latencies = probe->part(placement_of(*some));
      ASSERT_TRUE(latencies && latencies->awaits_rates());
      const auto found = probe->wait([] {});
      ASSERT_NE(found, nullptr);
      const auto fabric = with_rates(*latencies, *found);
      ASSERT_TRUE(fabric);
      EXPECT_EQ(fabric->hosts.size(), 2U);
      EXPECT_EQ(fabric->hosts[0].key, placement_of(*some).keys[0]);
      EXPECT_EQ(fabric->pairs.size(), 2U);
    }
    rank.barrier();
  });
}

TEST(BackgroundProbe, WithoutARankThereAreNoRatesAndNoError) {
  run_ranks(3, [](Rank& rank) {
    become_host_of(rank);
    const auto group = rank.group();
    auto probe = BackgroundProbe::begin(*group, latencies_of(*group), options());
    if (rank.rank == 2) {
      std::thread waits([&] { EXPECT_EQ(probe->wait([] {}), nullptr); });
      rank.barrier();
      BackgroundProbe::stop_all();
      waits.join();
    } else {
      rank.barrier();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    probe.reset();
    EXPECT_EQ(BackgroundProbe::of(placement_of(*group)), nullptr);
    group->check();
    rank.barrier();
  });
}

TEST(BackgroundProbe, AnErrorOfTheCallerEndsItsWait) {
  run_ranks(2, [](Rank& rank) {
    become_host_of(rank);
    const auto group = rank.group();
    const auto probe = BackgroundProbe::begin(*group, latencies_of(*group), options());
    const auto fail = [] { throw Error(ErrorCode::kAborted, "enough"); };
    if (rank.rank == 0) {
      EXPECT_THROW(probe->wait(fail), Error);
    }
    EXPECT_NE(probe->wait([] {}), nullptr);
    rank.barrier();
  });
}

}  // namespace
}  // namespace q7x2
