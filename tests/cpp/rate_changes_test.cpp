// A Fabric whose links and hosts have other rates than were measured.
#include "fabric/rate_changes.h"

#include <string>

#include <gtest/gtest.h>

#include "base/error.h"

namespace q7x2 {
namespace {

constexpr int kAny = -1;

TEST(RateChanges, ChangeTheRatesOfTheirLinksAlone) {
  const Fabric measured = Fabric::uniform(3, 2, 1e9);
  const Fabric changed = with_rate_changes(measured, {{{1, kAny}, 200}, {{0, 2}, 500}});
  EXPECT_EQ(changed.hosts[1].egress, 0.2e9);
  EXPECT_EQ(changed.hosts[1].ingress, 1e9);
  EXPECT_EQ(changed.hosts[0].egress, 1e9);
  ASSERT_EQ(changed.pairs.size(), 1U);
  EXPECT_EQ(changed.pairs[0].rate, 0.5e9);
  EXPECT_EQ(changed.host_reduce_rate(1), measured.reduce_rate);
  changed.validate();
  EXPECT_THROW(with_rate_changes(measured, {{{3, kAny}, 200}}), Error);
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
}

TEST(RateChanges, AreToldInSentences) {
  const Fabric measured = Fabric::uniform(3, 2, 1e9);
  EXPECT_EQ(
      rate_changes_text(measured, {{{2, kAny}, 300}}, {{{kAny, 1}, 200}, {{0, 2}, 500}}),
      "host h1 receives at 20 % of its measured rate; host h0 sends to host h2 at 50 % of its "
      "measured rate; host h2 sends at its measured rate again");
  EXPECT_EQ(rate_changes_text(measured, {}, {{{1, 1}, 254}}),
            "host h1 computes at 25 % of its measured rate");
  EXPECT_EQ(rate_changes_text(measured, {{{0, 0}, 100}, {{1, 1}, 254}}, {}, {1}),
            "host h0 computes at its measured rate again; host h1 has had too little to do for "
            "ten minutes, and counts as recovered");
}

}  // namespace
}  // namespace q7x2
