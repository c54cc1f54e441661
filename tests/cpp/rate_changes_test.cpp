// A Fabric whose links and hosts have other rates than were measured.
#include "fabric/rate_changes.h"

#include <map>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "base/error.h"
#include "fabric/routes.h"

namespace q7x2 {
namespace {

constexpr int kAny = kAnyHost;
using Kind = RatedResource::Kind;

/// Four hosts in two racks, with a private link between 0 and 1. All resources have a rate.
Fabric varied() {
  Fabric fabric = Fabric::uniform(4, 2, 1e9);
  fabric.racks = {{"", 1.5e9, 1.4e9}, {"", 1.3e9, 1.2e9}};
  fabric.hosts[2].rack = fabric.hosts[3].rack = 1;
  fabric.links = {{0, 1, 4e9, 1e-5}};
  fabric.pairs = {{.from = 1, .to = 2, .alpha = 2e-5, .rate = 8e8, .solo = 1e6}};
  fabric.tuned.resize(1);
  return fabric;
}

/// By name: the rate of each resource that traffic takes.
std::map<std::string, double> rates_of(const Fabric& fabric) {
  std::map<std::string, double> rates;
  const Routes routes(fabric);
  for (const auto& resource : routes.resources()) rates[resource.name] = resource.rate;
  return rates;
}

// Of each kind of change: the rate of its resource changes for the planner, and no other one.
TEST(RateChanges, ChangeTheRateOfTheirResourceAlone) {
  struct Case {
    RatedResource of;
    const char* resource;
    double before;
  };
  const Fabric measured = varied();
  const std::map<std::string, double> before = rates_of(measured);
  for (const auto& [of, resource, was] : {
           Case{{1, kAny}, "egress h1", 1e9},
           Case{{kAny, 2}, "ingress h2", 1e9},
           Case{{0, kAny, Kind::kCable}, "up rack 0", 1.5e9},
           Case{{kAny, 0, Kind::kCable}, "down rack 0", 1.4e9},
           Case{{1, kAny, Kind::kCable}, "up rack 1", 1.3e9},
           Case{{kAny, 1, Kind::kCable}, "down rack 1", 1.2e9},
           Case{{1, 2}, "pair h1 -> h2", 1e6},
           Case{{2, 3}, "pair h2 -> h3", 1e9},
           Case{{0, 3}, "pair h0 -> h3", 1e9},
       }) {
    for (const int64_t thousandths : {5, 200, 640}) {
      SCOPED_TRACE(resource);
      const Fabric changed = with_rate_changes(measured, {{of, thousandths}});
      changed.validate();
      EXPECT_TRUE(changed.tuned.empty()) << "they were measured before";
      std::map<std::string, double> expected = before;
      expected[resource] = was * (static_cast<double>(thousandths) / 1000);
      EXPECT_EQ(rates_of(changed), expected);
    }
  }
}

TEST(RateChanges, APrivateLinkIsAsFastAsItsSlowerWay) {
  const Fabric measured = varied();
  for (const auto& [from, to] : {std::pair(0, 1), {1, 0}}) {
    const Fabric changed = with_rate_changes(measured, {{{from, to, Kind::kLink}, 400}});
    ASSERT_EQ(changed.links.size(), 1U);
    EXPECT_DOUBLE_EQ(changed.links[0].rate, 1.6e9);
    EXPECT_EQ(rates_of(changed).at("egress h0"), 1e9);
  }
  const Fabric changed =
      with_rate_changes(measured, {{{0, 1, Kind::kLink}, 400}, {{1, 0, Kind::kLink}, 300}});
  EXPECT_DOUBLE_EQ(changed.links[0].rate, 1.2e9);
}

// As a probe of the network would find: see infer.h.
TEST(RateChanges, APrivateLinkThatIsNoFasterThanTheNetworkGoes) {
  const Fabric measured = varied();
  const Fabric changed = with_rate_changes(measured, {{{1, 0, Kind::kLink}, 200}});
  EXPECT_TRUE(changed.links.empty());
  EXPECT_EQ(Routes(changed).between_hosts(0, 1).rate, 1e9);
  EXPECT_EQ(
      with_rate_changes(measured, {{{1, 0, Kind::kLink}, 200}, {{0, kAny}, 100}, {{kAny, 0}, 100}})
          .links.size(),
      1U)
      << "it still is better than what the network has become";
  Fabric slow = measured;
  slow.links[0].rate = 5e8;
  EXPECT_EQ(with_rate_changes(slow, {{{2, kAny}, 200}}).links.size(), 1U) << "it was given";
}

TEST(RateChanges, RefuseWhatIsNotThere) {
  const Fabric measured = varied();
  for (const RatedResource& of : {RatedResource{4, kAny},
                                  {kAny, kAny},
                                  {-2, 0},
                                  {2, kAny, Kind::kCable},
                                  {kAny, kAny, Kind::kCable},
                                  {0, 2, Kind::kLink},
                                  {0, kAny, Kind::kLink},
                                  {0, 1, Kind::kCable}}) {
    EXPECT_THROW(with_rate_changes(measured, {{of, 200}}), Error);
  }
}

TEST(RateChanges, ChangeWhatAProcessorDoes) {
  Fabric measured = Fabric::uniform(3, 2, 1e9);
  measured.codecs = {{"int8", 1e9, 2e9, 0, 0}, {"topk", 1e9, 2e9, 3e9, 4e9}};
  measured.hosts[1].rates = {{"cuda", 1e12, 1e12, {}}, {"cpu", 4e9, 0, {{"int8", 5e8, 1e9}}}};
  measured.tuned.resize(1);
  for (const int host : {1, 2}) {
    SCOPED_TRACE(host);
    const Fabric changed = with_rate_changes(measured, {{{host, host}, 250}});
    EXPECT_EQ(changed.host_copy_rate(host), measured.host_copy_rate(host) / 4);
    EXPECT_EQ(changed.host_reduce_rate(host), measured.host_reduce_rate(host) / 4);
    for (const char* codec : {"int8", "topk"}) {
      const Fabric::CodecRate& before = *measured.host_codec_rate(host, codec);
      const Fabric::CodecRate& after = *changed.host_codec_rate(host, codec);
      EXPECT_EQ(after.encode, before.encode / 4);
      EXPECT_EQ(after.decode, before.decode / 4);
      EXPECT_EQ(after.encode_sum, before.encode_sum / 4);
      EXPECT_EQ(after.select, before.select / 4);
    }
    EXPECT_EQ(changed.host_reduce_rate(0), measured.reduce_rate);
    EXPECT_EQ(changed.host_reduce_rate(1, "cuda"), 1e12) << "another device";
    EXPECT_EQ(changed.hosts[static_cast<size_t>(host)].egress, 1e9);
    EXPECT_TRUE(changed.tuned.empty()) << "they were measured before";
    changed.validate();
  }
}

TEST(RateChanges, WhatIsNotKnownStaysSo) {
  Fabric measured = Fabric::uniform(3, 1, 1e9);
  measured.copy_rate = 0;
  EXPECT_EQ(with_rate_changes(measured, {{{1, 1}, 250}}).host_copy_rate(1), 0);
  EXPECT_TRUE(with_rate_changes(Fabric::uniform(3, 1, 0), {{{0, 1}, 250}}).pairs.empty());
}

TEST(RateChanges, AreToldInSentences) {
  const Fabric measured = Fabric::uniform(3, 2, 1e9);
  EXPECT_EQ(
      rate_changes_text(measured, {{{2, kAny}, 300}}, {{{kAny, 1}, 200}, {{0, 2}, 500}}),
      "host h1 receives at 20 % of its measured rate; host h0 sends to host h2 at 50 % of its "
      "measured rate; host h2 sends at its measured rate again");
  EXPECT_EQ(rate_changes_text(measured, {}, {{{1, 1}, 254}}),
            "host h1 computes at 25 % of its measured rate");
  EXPECT_EQ(rate_changes_text(varied(), {{{0, 1, Kind::kLink}, 100}},
                              {{{kAny, 1, Kind::kCable}, 200}, {{1, 0, Kind::kLink}, 100}},
                              {{0, 1, Kind::kLink}}),
            "the cable of rack 1 carries what enters at 20 % of its measured rate; host h1 sends "
            "to host h0 over their private link at 10 % of its measured rate; host h0 sends to "
            "host h1 over their private link at an unknown rate: nothing has passed for ten "
            "minutes, so it counts as recovered");
  EXPECT_EQ(rate_changes_text(measured, {{{0, 0}, 100}, {{1, 1}, 254}}, {}, {{1, 1}}),
            "host h0 computes at its measured rate again; host h1 has had too little to do for "
            "ten minutes, and counts as recovered");
}

}  // namespace
}  // namespace q7x2
