// What codecs cost on hosts of different speeds.
#include "executor/collective/codec_rates.h"

#include <gtest/gtest.h>

#include "kernels/codec/codec.h"

namespace q7x2 {
namespace {

TEST(CodingCost, IsThatOfTheHostOrOfTheSlowestOne) {
  Fabric fabric = Fabric::uniform(3, 1, 1e9);
  fabric.codecs = {{"int8", 4e9, 8e9}};
  fabric.hosts[1].rates = {{"cpu", 0, 0, {{"int8", 1e9, 9e9}}}};
  fabric.hosts[2].rates = {{"cuda", 1e12, 1e12, {{"int8", 1e12, 1e12}}}};
  const Codec codec(parse_codec("int8"));
  const auto cost = [&](int host) {
    return coding_cost(codec, DType::kFloat32, fabric, host).messages.at(0);
  };
  EXPECT_DOUBLE_EQ(cost(0).encode_rate, 4e9);
  EXPECT_DOUBLE_EQ(cost(1).encode_rate, 1e9);
  EXPECT_DOUBLE_EQ(cost(1).decode_rate, 9e9);
  EXPECT_DOUBLE_EQ(cost(2).encode_rate, 4e9);
  EXPECT_DOUBLE_EQ(cost(-1).encode_rate, 1e9);
  EXPECT_DOUBLE_EQ(cost(-1).decode_rate, 8e9);
}

TEST(CodingCost, FollowsTheSlowestCopyWhereNothingWasMeasured) {
  Fabric fabric = Fabric::uniform(2, 1, 1e9);
  const Codec codec(parse_codec("int8"));
  const double even = coding_cost(codec, DType::kFloat32, fabric).messages.at(0).encode_rate;
  fabric.hosts[1].rates = {{"cpu", fabric.copy_rate / 2, 0, {}}};
  const double slow = coding_cost(codec, DType::kFloat32, fabric).messages.at(0).encode_rate;
  EXPECT_DOUBLE_EQ(slow, even / 2);
}

}  // namespace
}  // namespace q7x2
