// Codecs that select: what each of them sends, in how many bytes, and what it refuses.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/codec/sparse.h"
#include "sparse_cases.h"

namespace q7x2 {
namespace {

using test::bits;
using test::normal;
using test::reader;
using test::Sender;
using test::sorted_out;

TEST(SparseCodec, SendsExactlyTheLargest) {
  const std::vector<float> values = normal(200'000, 17);
  std::vector<float> error(values.size());
  Sender sender("topk:0.01");
  const std::vector<float> out = sender.send(values, error, {1, 2});
  const std::set<size_t> expected = sorted_out(values, 2'000);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(out[i], expected.contains(i) ? values[i] : 0);
    EXPECT_EQ(error[i], expected.contains(i) ? 0 : values[i]);
  }
}

TEST(SparseCodec, TakesFiveBytesForOneInAHundred) {
  const std::vector<float> values = normal(1 << 20, 18);
  std::vector<float> none;
  Sender sender("topk:0.01");
  sender.send(values, none, {});
  const double entries = static_cast<double>(selected_count(0.01, values.size()));
  const double each = static_cast<double>(sender.bytes) / entries;
  EXPECT_NEAR(each, 5.1, 0.05);
  EXPECT_NEAR(sender.codec().traits().bits, each * 0.08, 0.01);
}

TEST(SparseCodec, IsNeverLongerThanDense) {
  const std::vector<float> values = normal(1 << 17, 19);
  std::vector<float> none;
  for (const std::string value : {"", "+int8", "+int4", "+onebit", "+fp16"}) {
    const size_t dense = Codec::make(value.empty() ? "fp32" : value.substr(1))->max_bytes(1 << 16);
    size_t before = 0;
    for (const std::string ratio : {"0.001", "0.01", "0.1", "0.3", "0.6", "0.9", "1"}) {
      Sender sender("topk:" + ratio + value);
      sender.send(values, none, {});
      EXPECT_LE(sender.bytes, 2 * dense);
      EXPECT_GE(sender.bytes, before);
      before = sender.bytes;
    }
    EXPECT_EQ(before, 2 * dense);
  }
}

TEST(SparseCodec, SendsNoIndicesOfARandomSelection) {
  const std::vector<float> values = normal(1 << 16, 20);
  std::vector<float> none;
  Sender sender("randomk:0.1");
  const std::vector<float> out = sender.send(values, none, {5, 0});
  size_t sent = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (out[i] == 0) continue;
    EXPECT_EQ(out[i], values[i]);
    ++sent;
  }
  EXPECT_NEAR(static_cast<double>(sent), 6553.6, 400);
  EXPECT_EQ(sender.bytes, 16 + 4 * sent);
  EXPECT_NE(sender.send(values, none, {6, 0}), out) << "another call, another selection";
}

TEST(SparseCodec, SendsAllAboveAThreshold) {
  const std::vector<float> values = normal(10'000, 21);
  std::vector<float> none;
  Sender sender("threshold:1.5");
  const std::vector<float> out = sender.send(values, none, {});
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(out[i], std::abs(values[i]) >= 1.5F ? values[i] : 0);
  }
}

TEST(SparseCodec, SendsTwoOfFour) {
  const std::vector<float> values = normal(10'001, 22);
  std::vector<float> none;
  Sender sender("nm:2:4", 1000);
  const std::vector<float> out = sender.send(values, none, {});
  for (size_t begin = 0; begin + 4 <= values.size(); begin += 4) {
    std::vector<float> magnitudes;
    for (size_t i = begin; i < begin + 4; ++i) magnitudes.push_back(std::abs(values[i]));
    std::sort(magnitudes.begin(), magnitudes.end());
    for (size_t i = begin; i < begin + 4; ++i) {
      EXPECT_EQ(out[i], std::abs(values[i]) >= magnitudes[2] ? values[i] : 0) << i;
    }
  }
}

TEST(SparseCodec, SendsWholeBlocks) {
  std::vector<float> values = normal(256 * 64, 23);
  for (size_t i = 256 * 10; i < 256 * 11; ++i) values[i] *= 10;
  for (size_t i = 256 * 63; i < 256 * 64; ++i) values[i] *= 10;
  std::vector<float> none;
  Sender sender("blocks:0.03", 256 * 16);
  const std::vector<float> out = sender.send(values, none, {});
  for (size_t i = 0; i < values.size(); ++i) {
    const bool is_sent = i / 256 == 10 || i / 256 == 63;
    EXPECT_EQ(out[i], is_sent ? values[i] : 0) << i;
  }
  EXPECT_EQ(sender.bytes, 4 * 16 + 2 * (1 + 256 * 4));
}

TEST(SparseCodec, SumsAreSentWithTheirOwnCodec) {
  const auto topk = Codec::make("topk:0.01+int8");
  EXPECT_EQ(topk->of_sums().spec().select, SelectKind::kNonZero);
  EXPECT_EQ(topk->of_sums().spec().value, topk->spec().value);
  EXPECT_FALSE(topk->of_sums().traits().selects);
  EXPECT_EQ(Codec::make("blocks:0.1")->of_sums().spec().select, SelectKind::kNonZeroBlocks);
  const auto reselect = Codec::make("topk:0.01:reselect");
  EXPECT_EQ(reselect->of_sums().spec().select, SelectKind::kReselect);
  EXPECT_EQ(reselect->of_sums().spec().amount, 0.01);
  const auto random = Codec::make("randomk:0.1");
  EXPECT_EQ(&random->of_sums(), random.get());
  const auto dense = Codec::make("int8");
  EXPECT_EQ(&dense->of_sums(), dense.get());

  const std::vector<float> values = normal(100'000, 24);
  std::vector<float> sum(values.size());
  for (size_t i = 0; i < values.size(); i += 20) sum[i] = values[i];
  for (const char* name : {"topk:0.01", "blocks:0.1", "threshold:1", "sampled:0.1", "nm:1:4"}) {
    const auto codec = Codec::make(name);
    std::vector<std::byte> message(codec->of_sums().max_bytes(sum.size()));
    message.resize(
        codec->of_sums().encode({.values = sum.data(), .count = sum.size()}, message.data()));
    std::vector<float> out(sum.size());
    codec->of_sums().decode(message, out.data(), out.size(), 0, {});
    EXPECT_EQ(out, sum) << name;
  }
  // Again the largest, of this message alone; the owner keeps the rest.
  const Codec& again = reselect->of_sums();
  std::vector<float> error(values.size());
  std::vector<std::byte> message(again.max_bytes(values.size()));
  message.resize(again.encode({.values = values.data(),
                               .count = values.size(),
                               .first = 1000,
                               .add = error.data(),
                               .error = error.data()},
                              message.data()));
  std::vector<float> out(values.size());
  again.decode(message, out.data(), out.size(), 1000, {});
  std::set<size_t> expected = sorted_out(values, 1'000);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(out[i], expected.contains(i) ? values[i] : 0);
    EXPECT_EQ(error[i], expected.contains(i) ? 0 : values[i]);
  }
  // As many as the owner says.
  message.resize(again.max_bytes(values.size()));
  message.resize(
      again.encode({.values = values.data(), .count = values.size(), .most = 30}, message.data()));
  EXPECT_EQ(Codec::entries(message), 30);
  again.decode(message, out.data(), out.size(), 0, {});
  expected = sorted_out(values, 30);
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(out[i] != 0, expected.contains(i));
}

// Gathered or not, and with ties in the middle of the tensor.
TEST(SparseCodec, CountsWhatItSends) {
  for (const size_t count : {size_t{1}, size_t{1'000}, size_t{100'003}}) {
    std::vector<float> values = normal(count, 28);
    for (float& value : values) value = std::round(value * 64) / 64;
    const ReadElements read = [&](size_t first, size_t) { return values.data() + first; };
    for (const std::string name : {"topk:0.01:balanced", "topk:0.3:balanced",
                                   "sampled:0.02:balanced", "threshold:1.5:balanced"}) {
      const auto codec = Codec::make(name);
      const Selection selection = codec->select(read, count, {});
      for (const size_t granule : {64, 1'024, 16'384}) {
        const std::vector<int32_t> counts = codec->count_selected(read, count, selection, granule);
        ASSERT_EQ(counts.size(), (count + granule - 1) / granule);
        for (size_t i = 0; i < counts.size(); ++i) {
          const size_t first = i * granule;
          const size_t length = std::min(granule, count - first);
          std::vector<std::byte> message(codec->max_bytes(length));
          message.resize(codec->encode({.values = values.data() + first,
                                        .count = length,
                                        .first = first,
                                        .selection = selection},
                                       message.data()));
          // A dense message holds all.
          if (Codec::entries(message) < length) {
            EXPECT_EQ(counts[i], Codec::entries(message)) << name << ", granule " << i;
          }
        }
      }
    }
  }
}

TEST(SparseCodec, RefusesALayoutThatItDoesNotHave) {
  const std::vector<float> values = normal(1000, 32);
  const auto layout_of = [&](const std::string& name, uint8_t layout) {
    const auto codec = Codec::make(name);
    std::vector<std::byte> message(codec->max_bytes(values.size()));
    const Selection selection = codec->select(reader(values), values.size(), {});
    message.resize(codec->encode(
        {.values = values.data(), .count = values.size(), .selection = selection}, message.data()));
    message[2] = static_cast<std::byte>(layout);
    std::vector<float> out(values.size());
    codec->decode(message, out.data(), out.size(), 0, {});
  };
  EXPECT_NO_THROW(layout_of("topk:0.01", 2));
  EXPECT_NO_THROW(layout_of("randomk:0.01", 1));
  EXPECT_NO_THROW(layout_of("fp32", 0));
  for (const uint8_t layout : {0, 1, 3, 4, 255})
    EXPECT_THROW(layout_of("topk:0.01", layout), Error);
  for (const uint8_t layout : {0, 2, 3, 4, 255})
    EXPECT_THROW(layout_of("randomk:0.01", layout), Error);
  for (const uint8_t layout : {1, 2, 3, 4, 255}) EXPECT_THROW(layout_of("fp32", layout), Error);
}

}  // namespace
}  // namespace q7x2
