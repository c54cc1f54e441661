// Measurements on a busy machine: what noise does to stored figures, what is doubtful, and for how
// long it counts.
#include "fabric/doubt.h"

#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "executor/probe/tournament.h"
#include "fabric/catalogue.h"
#include "fabric/infer.h"

namespace q7x2 {
namespace {

constexpr double kRate = 125e6;
constexpr double kRoundTrip = 100e-6;

/// Four hosts on one switch with two ranks each.
struct Probe {
  double rate_noise = 0;   // rates are 1 - noise ... 1 of the true one
  double ping_noise = 0;   // round trips are 1 ... 1 + noise of the true one
  double rate_spread = 0;  // that the streams report
  double ping_spread = 0;

  Fabric run(uint64_t seed) const {
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<double> part(0, 1);
    Measurements measured;
    for (int host = 0; host < 4; ++host) {
      measured.host_of.insert(measured.host_of.end(), {host, host});
      measured.hosts.push_back({.name = "h" + std::to_string(host), .key = std::to_string(host)});
      measured.pings.push_back(
          {host, host, 2e-6 * (1 + ping_noise * part(random)), ping_spread, 0});
    }
    for (const auto& round : tournament(4, 16)) {
      auto& flows = measured.rounds.emplace_back();
      for (const auto& [a, b] : round) {
        measured.pings.push_back(
            {a, b, kRoundTrip * (1 + ping_noise * part(random)), ping_spread, 5e-6});
        flows.push_back({a, b, kRate * (1 - rate_noise * part(random)), rate_spread});
        flows.push_back({b, a, kRate * (1 - rate_noise * part(random)), rate_spread});
      }
    }
    Fabric fabric = infer(measured);
    fabric.made.source = "probe";
    return fabric;
  }
};

// Other work only takes time, so a figure errs to one side, and by no more than its measurements.
TEST(Doubt, NoiseChangesAStoredFigureByNoMoreThanItself) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    for (const double noise : {0.02, 0.1, 0.2, 0.4}) {
      const Fabric fabric = Probe{.rate_noise = noise, .ping_noise = noise}.run(seed);
      ASSERT_EQ(fabric.racks.size(), 1U) << "noise makes no racks";
      for (const Fabric::Host& host : fabric.hosts) {
        for (const double rate : {host.egress, host.ingress}) {
          EXPECT_LE(rate, kRate);
          EXPECT_GE(rate, kRate * (1 - noise));
        }
      }
      const double one_way = fabric.network.alpha + 2 * fabric.network.overhead;
      EXPECT_GE(one_way, kRoundTrip / 2 * 0.999);
      EXPECT_LE(one_way, kRoundTrip / 2 * (1 + noise) * 1.001);
    }
  }
}

TEST(Doubt, ASteadyProbeIsBelieved) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    EXPECT_EQ(doubt_of(Probe{.rate_noise = 0.2,
                             .ping_noise = 0.4,
                             .rate_spread = kDoubtfulSpread,
                             .ping_spread = kDoubtfulSpread}
                           .run(seed)),
              "");
  }
}

TEST(Doubt, ASpreadAboveTheBoundIsDoubtful) {
  EXPECT_TRUE(is_doubtful(std::nan(""))) << "nothing has passed";
  for (const double spread : {1.001 * kDoubtfulSpread, 80.0}) {
    for (const Probe& probe : {Probe{.rate_spread = spread}, Probe{.ping_spread = spread}}) {
      EXPECT_NE(doubt_of(probe.run(1)).find("on 12 of 12 routes"), std::string::npos);
    }
  }
  Fabric few = Probe{}.run(1);
  for (size_t pair = 0; pair < 3; ++pair) few.pairs[pair].alpha_spread = 2;
  EXPECT_EQ(doubt_of(few), "") << "a quarter of the routes says little of the rest";
  few.pairs[3].rate_spread = 2;
  EXPECT_NE(doubt_of(few), "");
}

TEST(Doubt, WhatCannotBeIsDoubtful) {
  const Fabric good = Probe{}.run(1);
  Fabric fabric = good;
  fabric.memory.alpha = 4.5e-3;
  EXPECT_EQ(doubt_of(fabric), "a message inside a host took 4501 us");
  fabric.memory.measured = false;
  EXPECT_EQ(doubt_of(fabric), "");
  fabric = good;
  fabric.copy_rate = 50e6;
  EXPECT_EQ(doubt_of(fabric), "a core copied 50 MB/s");
  fabric.made.source = "my own";
  EXPECT_EQ(doubt_of(fabric), "") << "that is for its author to know";
}

TEST(Doubt, ADoubtfulFabricIsKeptForMinutes) {
  const auto now = std::chrono::duration_cast<std::chrono::seconds>(
      std::chrono::system_clock::now().time_since_epoch());
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("q7x2-doubt-" + std::to_string(::getpid()));
  const std::string file = folder / "fabric.json";
  constexpr std::chrono::hours kWeek{24 * 7};
  Fabric good = Probe{}.run(1);
  Fabric doubtful = Probe{.rate_spread = 3}.run(1);
  const auto is_kept = [&](Fabric& fabric, std::chrono::seconds age, std::chrono::seconds most) {
    fabric.made.time = (now - age).count();
    write_fabric(file, fabric);
    return catalogued(file, most).has_value();
  };
  using std::chrono::minutes;
  EXPECT_TRUE(is_kept(good, kWeek - minutes(1), kWeek));
  EXPECT_FALSE(is_kept(good, kWeek, kWeek));
  EXPECT_FALSE(is_kept(good, -minutes(5), kWeek)) << "it comes from the future";
  EXPECT_TRUE(is_kept(doubtful, kDoubtfulAge - minutes(1), kWeek));
  EXPECT_FALSE(is_kept(doubtful, kDoubtfulAge, kWeek));
  EXPECT_FALSE(is_kept(doubtful, minutes(5), minutes(1)));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace q7x2
