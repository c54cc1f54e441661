// What sparse all-reduces cost, by ranks and by servers.
#include "plan/cost/row_costs.h"

#include <cmath>

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

constexpr double kRate = 12.5e6;

Fabric with_servers(int hosts, int ranks_per_host, int servers, double rate) {
  Fabric fabric = Fabric::uniform(hosts, ranks_per_host, kRate);
  for (int i = 0; i < servers; ++i) {
    fabric.servers.push_back({.name = "s", .key = {}, .egress = rate, .ingress = rate});
  }
  return fabric;
}

TEST(RowCosts, RanksSendTheirRowsAndTheirShareOfTheSum) {
  const Fabric fabric = with_servers(8, 1, 0, 0);
  EXPECT_NEAR(seconds_by_ranks(fabric, {.given = 8e6, .summed = 4e6}), 7.0 / 8 * 5e6 / kRate, 1e-9);
  EXPECT_TRUE(std::isinf(seconds_by_servers(fabric, {.given = 8e6, .summed = 4e6})));
}

TEST(RowCosts, RanksOfOneHostShareItsLink) {
  const Fabric fabric = with_servers(4, 2, 1, 10 * kRate);
  const RowVolume volume{.given = 8e6, .summed = 4e6};
  EXPECT_NEAR(seconds_by_ranks(fabric, volume), 2 * 6.0 / 8 * 5e6 / kRate, 1e-9);
  EXPECT_NEAR(seconds_by_servers(fabric, volume), 2 * 4e6 / kRate, 1e-3);
}

TEST(RowCosts, ServersHelpWhereRanksHaveTheSameRows) {
  const Fabric fabric = with_servers(8, 1, 2, 10 * kRate);
  const auto helps = [&](const RowVolume& volume) {
    return seconds_by_servers(fabric, volume) < seconds_by_ranks(fabric, volume);
  };
  EXPECT_TRUE(helps({.given = 8e6, .summed = 1e6}));
  EXPECT_TRUE(helps({.given = 8e6, .summed = 4e6}));
  EXPECT_FALSE(helps({.given = 8e6, .summed = 8e6}));
  EXPECT_FALSE(helps({.given = 8e2, .summed = 1e2}));  // the messages of an attempt cost more
}

TEST(RowCosts, SlowServersDoNotHelp) {
  const RowVolume same{.given = 8e6, .summed = 1e6};
  for (const int servers : {1, 2, 4}) {
    const Fabric fabric = with_servers(8, 1, servers, kRate);
    EXPECT_GT(seconds_by_servers(fabric, same), seconds_by_ranks(fabric, same)) << servers;
  }
  EXPECT_LT(seconds_by_servers(with_servers(8, 1, 8, kRate), same),
            seconds_by_ranks(with_servers(8, 1, 8, kRate), same));
}

TEST(RowCosts, UnknownRatesLeaveCallsToTheRanks) {
  Fabric fabric = Fabric::uniform(4, 1, 0);
  fabric.servers.push_back({.name = "s", .key = {}});
  const RowVolume same{.given = 4e6, .summed = 1e6};
  EXPECT_GT(seconds_by_servers(fabric, same), seconds_by_ranks(fabric, same));
}

}  // namespace
}  // namespace q7x2
